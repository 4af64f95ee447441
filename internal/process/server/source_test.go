package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
)

// TestXDSSettings: every variable of the control plane sets its field. The tests of package xds check the effects.
func TestXDSSettings(t *testing.T) {
	t.Parallel()
	of := func(env ...string) xds.Config {
		t.Helper()
		s := parsed(t, append(env, "BACKEND_TYPE=memory", "USE_STATSD=false")...)
		return (&Server{settings: s}).xdsConfig()
	}
	same := cmpopts.IgnoreFields(xds.Config{}, "Hooks")
	want := xds.Config{
		Server: "localhost:18000", NodeID: "default",
		Backoff: xds.Backoff{First: 3 * time.Second, Initial: 10 * time.Second, Max: time.Minute, Factor: 0.5},
	}
	if d := cmp.Diff(want, of("CONFIG_TYPE=GRPC_XDS_SOTW"), same); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	got := of("CONFIG_TYPE=GRPC_XDS_DELTA", "CONFIG_GRPC_XDS_NODE_ID=n", "CONFIG_GRPC_XDS_NODE_METADATA=a=b, c=d", "CONFIG_GRPC_XDS_SERVER_URL=s:1",
		"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL=0s", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=authorization: Bearer x, y:z",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=c", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=k",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=a", "CONFIG_GRPC_XDS_SERVER_TLS_SAN=n", "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=2s",
		"XDS_CLIENT_BACKOFF_MAX_INTERVAL=3s", "XDS_CLIENT_BACKOFF_RANDOM_FACTOR=4", "XDS_CLIENT_BACKOFF_JITTER=false",
		"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=5", "XDS_KEEP_ON_EMPTY=true")
	want = xds.Config{
		Server: "s:1", Delta: true, NodeID: "n", NodeMetadata: map[string]string{"a": "b", "c": "d"},
		Headers: map[string]string{"authorization": "Bearer x", "y": "z"}, MaxMessage: 5, KeepOnEmpty: true,
		TLS:     xds.TLS{On: true, Cert: "c", Key: "k", CA: "a", ServerName: "n"},
		Backoff: xds.Backoff{First: 1, Initial: 2 * time.Second, Max: 3 * time.Second, Factor: 4, NoJitter: true},
	}
	if d := cmp.Diff(want, got, same); d != "" {
		t.Errorf("all of them (-want +got):\n%s", d)
	}
}
