package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestXDS(t *testing.T) {
	t.Parallel()
	s, notices, problems := parse(t, "USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_DELTA", "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"CONFIG_GRPC_XDS_NODE_METADATA=zone=eu,note=a=b", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=1s", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization:Bearer a:b,x-zone:eu",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=/certs/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=/certs/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=/certs/ca.crt", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=plane.example", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=2s",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=30s", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=1.5", "XDS_CLIENT_BACKOFF_JITTER=false",
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=1000000", "XDS_KEEP_ON_EMPTY=true")
	if problems != nil || notices != nil {
		t.Fatalf("problems %q, notices %q", problems, notices)
	}
	want := XDS{
		NodeID: "envoy-ratelimit", NodeMetadata: map[string]string{"zone": "eu", "note": "a=b"}, Server: "envoy-gateway:18001", FirstWait: time.Second,
		Headers: map[string]string{"authorization": "Bearer a:b", "x-zone": "eu"},
		TLS:     true, Cert: "/certs/tls.crt", Key: "/certs/tls.key", CA: "/certs/ca.crt", SAN: "plane.example",
		BackoffInitial: 2 * time.Second, BackoffMax: 30 * time.Second, BackoffFactor: 1.5, MaxMessage: 1_000_000, KeepOnEmpty: true,
	}
	if d := cmp.Diff(want, s.XDS); d != "" || s.Rules.Source != "GRPC_XDS_DELTA" {
		t.Errorf("settings of %s (-want +got):\n%s", s.Rules.Source, d)
	}
}

func TestXDSProblems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ environ, want string }{
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY belong together: set both, or neither"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY belong together: set both, or neither"},
		{"CONFIG_GRPC_XDS_NODE_METADATA==eu", `CONFIG_GRPC_XDS_NODE_METADATA="=eu": must be pairs such as key=value,key2=value2`},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=geheim", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be pairs such as key:value,key2:value2"},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=a:b, :geheim", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be pairs such as key:value,key2:value2"},
	} {
		_, _, problems := parse(t, "CONFIG_TYPE=GRPC_XDS_SOTW", tt.environ)
		if all := strings.Join(problems, "\n"); all != tt.want {
			t.Errorf("%s: problems %q, want %q", tt.environ, all, tt.want)
		}
	}
	if _, _, problems := parse(t, "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c"); problems != nil {
		t.Errorf("with rules from files: %q", problems)
	}
}
