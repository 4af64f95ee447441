package settings

import (
	"strings"
	"testing"
)

// What is probably meant for this server, and has no effect, is told with the name that was meant, and without its value. What others set
// is not.
func TestUnknown(t *testing.T) {
	t.Parallel()
	for environ, want := range map[string]string{
		"REDIS_PASSWORD=sesame":                 "REDIS_PASSWORD (REDIS_AUTH?)",
		"REDIS_SENTINEL_PASSWORD=sesame":        "REDIS_SENTINEL_PASSWORD (REDIS_SENTINEL_AUTH?)",
		"REDIS_PASSWORD_FILE=sesame":            "REDIS_PASSWORD_FILE (REDIS_AUTH_FILE?)",
		"REDIS_PERSECOND_HOST=sesame":           "REDIS_PERSECOND_HOST (REDIS_PERSECOND_URL?)",
		"REDIS_ADDR=sesame REDIS_USER=sesame":   "REDIS_ADDR (REDIS_URL?), REDIS_USER (REDIS_AUTH?)",
		"REDIS_DB=1 REDIS_PORT=6379":            "REDIS_DB, REDIS_PORT",
		"LIMIT_RESPONSE_HEADER_ENABLED=sesame":  "LIMIT_RESPONSE_HEADER_ENABLED (LIMIT_RESPONSE_HEADERS_ENABLED?)",
		"LIMIT_RESPONSE_HEADERS=sesame":         "LIMIT_RESPONSE_HEADERS (LIMIT_RESPONSE_HEADERS_ENABLED?)",
		"RUNTIME_SUBDIR=sesame":                 "RUNTIME_SUBDIR (RUNTIME_SUBDIRECTORY?)",
		"MEMCACHED_HOST_PORT=a MEMCACHE_HOST=b": "MEMCACHED_HOST_PORT (MEMCACHE_HOST_PORT?), MEMCACHE_HOST (MEMCACHE_HOST_PORT?)",
		"GRPC_MAX_CONNECTIONS_AGE=1h":           "GRPC_MAX_CONNECTIONS_AGE (GRPC_MAX_CONNECTION_AGE?)",
		"USE_STATS=true SHADOWMODE=true":        "SHADOWMODE (SHADOW_MODE?), USE_STATS (USE_STATSD?)",
		"LOG_LEVL=debug":                        "LOG_LEVL (LOG_LEVEL?)",

		// Kubernetes, for Services called redis, redis-master, memcache and limit.
		"REDIS_PORT=tcp://10.0.0.1:6379 REDIS_SERVICE_HOST=10.0.0.1 REDIS_SERVICE_PORT=6379 REDIS_SERVICE_PORT_TCP_REDIS=6379":                  "",
		"REDIS_PORT_6379_TCP=tcp://10.0.0.1:6379 REDIS_PORT_6379_TCP_PROTO=tcp REDIS_PORT_6379_TCP_PORT=6379 REDIS_PORT_6379_TCP_ADDR=10.0.0.1": "",
		"REDIS_MASTER_SERVICE_HOST=10.0.0.1 REDIS_MASTER_PORT=tcp://10.0.0.1:6379 MEMCACHE_PORT_11211_UDP_ADDR=10.0.0.1 LIMIT_SERVICE_PORT=1":   "",
		"KUBERNETES_SERVICE_HOST=10.0.0.1 KUBERNETES_PORT=tcp://10.0.0.1:443":                                                                   "",
		// Others.
		"GRPC_GO_LOG_SEVERITY_LEVEL=info GRPC_XDS_BOOTSTRAP=/a GRPC_TRACE=all GRPC_VERBOSITY=debug GRPC_ENFORCE_ALPN_ENABLED=false":        "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_SERVICE_NAME=a GOMAXPROCS=2 GOMEMLIMIT=1GiB GODEBUG=a=1":                                "",
		"HOME=/ HOSTNAME=a PATH=/ PWD=/ TERM=x LANG=C DD_AGENT_HOST=a DD_TRACE_ENABLED=a DD_SITE=a DEBUG=1 LOG=1 POD_IP=1 TZ=UTC NONSENSE": "",
		"RATELIMITD_ADDR=a:1 DOG_STATSD_MOGRIFIER_A_PATTERN=x REDIS_EMPTY= HTTP_PORT=1 ADMIN_PORT=1 CONFIG=/a RUNTIME=x REDIS=a:1":         "",
	} {
		_, notices, problems := parse(t, append(strings.Fields(environ), "USE_STATSD=false")...)
		if want != "" {
			want = "unknown variable, ignored: " + want + "; docs/settings.md lists all variables"
		}
		if said := strings.Join(notices, "\n"); said != want || problems != nil {
			t.Errorf("%s: %q, %q; want %q", environ, said, problems, want)
		}
	}
}
