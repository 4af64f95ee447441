package settings

import (
	"strings"
	"testing"
)

// TestCredentialsInAddresses: an address with a user or a password that would not be sent is an error at startup, which
// does not contain it. Otherwise, it would be resolved, and shown with the address. Only variables in use are checked.
func TestCredentialsInAddresses(t *testing.T) {
	t.Parallel()
	const plane, takes = "CONFIG_TYPE=GRPC_XDS_SOTW", "a host name or an IP address, without a user or a password"
	for _, tt := range []struct {
		environ string
		want    string // the only problem
	}{
		{"STATSD_HOST=user:sesame@statsd", "STATSD_HOST: must be " + takes},
		{"USE_DOG_STATSD=true STATSD_HOST=sesame@statsd", "STATSD_HOST: must be " + takes},
		{"HOST=user:sesame@a", "HOST: must be " + takes},
		{"GRPC_HOST=user:sesame@a", "GRPC_HOST: must be " + takes},
		{"DEBUG_HOST=user:sesame@a", "DEBUG_HOST: must be " + takes},
		{"PROMETHEUS_ADDR=sesame@a:9090", "PROMETHEUS_ADDR: must be an address such as :9090"},
		{"PORT=sesame@a", "PORT: must be a port number"},
		{"BACKEND_TYPE=redis://user:sesame@a", "BACKEND_TYPE: must be " + store.takes()},
		{"CONFIG_TYPE=user:sesame@a", "CONFIG_TYPE: must be FILE, "},
		{plane + " CONFIG_GRPC_XDS_SERVER_URL=user:sesame@a:1", "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, "},
		{plane + " CONFIG_GRPC_XDS_SERVER_URL=sesame@a:1", "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, "},
		{plane + " CONFIG_GRPC_XDS_SERVER_URL=dns:///user:sesame@a:1", "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, "},
		{plane + " CONFIG_GRPC_XDS_SERVER_URL=https://user:sesame@a:1", "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, "},
		{plane + " CONFIG_GRPC_XDS_SERVER_URL=unix:/run/plane@1.sock", ""},
		{"CONFIG_GRPC_XDS_SERVER_URL=user:sesame@a:1", ""},
		{"LOG_FORMAT=user:sesame@a", ""},
		{"BACKEND_TYPE=redis REDIS_POOL_ON_EMPTY_BEHAVIOR=user:sesame@a", ""},
		{"USE_STATSD=false STATSD_HOST=user:sesame@statsd", ""},
		{"USE_PROMETHEUS=true STATSD_HOST=user:sesame@statsd", ""},
		{"DISABLE_STATS=true STATSD_HOST=user:sesame@statsd", ""},
	} {
		_, notices, problems := parse(t, strings.Fields(tt.environ)...)
		said := strings.Join(problems, "\n")
		if !strings.HasPrefix(said, tt.want) || (said == "") != (tt.want == "") || len(problems) > 1 {
			t.Errorf("%s: %q, want %q", tt.environ, said, tt.want)
		}
		if strings.Contains(said+strings.Join(notices, ""), "sesame") {
			t.Errorf("%s: the secret is repeated: %q, %q", tt.environ, problems, notices)
		}
	}
}
