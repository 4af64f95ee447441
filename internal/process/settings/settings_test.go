package settings

import (
	"flag"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

var rewrite = flag.Bool("rewrite", false, "write the table into docs/settings.md")

// parse parses an environment with in-memory counters and more variables.
func parse(t *testing.T, more ...string) (s Settings, notices, lines []string) {
	t.Helper()
	s, notices, err := Parse(append([]string{"BACKEND_TYPE=memory"}, more...))
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	return s, notices, lines
}

func TestValues(t *testing.T) {
	t.Parallel()
	s, _, problems := parse(t, "PORT=0", "SHADOW_MODE=T", "GRPC_MAX_CONNECTION_AGE=90m", "LOG_LEVEL=Trace", "LOG_FORMAT=JSON",
		"NEAR_LIMIT_RATIO=1e-1", "MEMORY_MAX_KEYS=0x10", "RUNTIME_ROOT=/a=b", "HOST=::")
	if problems != nil {
		t.Fatal(problems)
	}
	if s.HTTP.Port != "0" || !s.Decide.Shadow || s.GRPC.MaxAge != 90*time.Minute || s.Log.Level != Level(slog.LevelDebug-4) ||
		s.Log.Format != "json" || s.Decide.NearLimitRatio != 0.1 || s.Backend.MemoryMaxKeys != 16 || s.Rules.Root != "/a=b" || s.HTTP.Host != "::" {
		t.Errorf("settings = %+v", s)
	}
}

// TestSetButEmptyIsUnset: an empty variable counts as unset: single values, lists, maps, and variables outside the
// table, such as those of mogrifiers and OTLP.
func TestSetButEmptyIsUnset(t *testing.T) {
	t.Parallel()
	empty := []string{
		"DOG_STATSD_MOGRIFIER_A_TAGS=", "OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_EXPORTER_OTLP_HEADERS=", "OTEL_EXPORTER_OTLP_TIMEOUT=",
	}
	for _, v := range variables(new(Settings)) {
		empty = append(empty, v.name+"=")
	}
	mogrified := []string{"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=a"}
	for _, environ := range [][]string{
		{"BACKEND_TYPE=memory"},
		nil,
		{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=127.0.0.1:11211"},
		{"CONFIG_TYPE=GRPC_XDS_DELTA", "CONFIG_GRPC_XDS_SERVER_USE_TLS=true"},
		{"TRACING_ENABLED=true"},
		mogrified,
	} {
		got, notices, err := Parse(append(slices.Clone(empty), environ...))
		if err != nil || notices != nil {
			t.Fatalf("%q: %v, notices %q; want none", environ, err, notices)
		}
		want, _, err := Parse(environ)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: settings (-want +got):\n%s", environ, d)
		}
	}
}

func TestBackend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ []string
		want    []string // parts of the only problem; none if valid
	}{
		{[]string{"BACKEND_TYPE=memory", "REDIS_URL=127.0.0.1:6379", "REDIS_SOCKET_TYPE=tcp", "REDIS_POOL_SIZE=lots", "MEMCACHE_SRV=x"}, nil},
		{nil, nil},
		{[]string{"BACKEND_TYPE=", "REDIS_URL="}, nil},
		{[]string{"REDIS_URL=127.0.0.1:6379"}, nil},
		{[]string{"REDIS_URL=127.0.0.1:6379", "BACKEND_TYPE=redis", "REDIS_AUTH=secret"}, nil},
		{[]string{"REDIS_TYPE=ring"}, []string{`REDIS_TYPE="ring": must be one of single, sentinel, cluster`}},
		{[]string{"REDIS_URL=x", "REDIS_AUTH=secret", "REDIS_AUTH_FILE=f"}, []string{"REDIS_AUTH and REDIS_AUTH_FILE", "one of them"}},
		{[]string{"BACKEND_TYPE=memcache"}, []string{"BACKEND_TYPE=memcache needs MEMCACHE_HOST_PORT"}},
		{[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1", "MEMCACHE_SRV=_a._b.c"}, []string{"MEMCACHE_SRV is not supported"}},
		{[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1,b:2", "REDIS_POOL_SIZE=lots"}, nil},
		{[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1", "MEMCACHE_MAX_IDLE_CONNS=x"}, []string{"MEMCACHE_MAX_IDLE_CONNS"}},
		{[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1", "EXPIRATION_JITTER_MAX_SECONDS=x"}, []string{"EXPIRATION_JITTER_MAX_SECONDS"}},
		{[]string{"BACKEND_TYPE=Memry"}, []string{`BACKEND_TYPE="Memry": must be ` + store.takes()}},
	} {
		_, _, err := Parse(tt.environ)
		if (err != nil) != (tt.want != nil) {
			t.Errorf("%q: %v", tt.environ, err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
				t.Errorf("%q: %v\nwant one line with %q", tt.environ, err, part)
			}
		}
	}
}

// TestOnly: variables that are not named have their defaults and are not validated, and combinations are not checked.
func TestOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ, names, want string // the type of the backend, the format of memcached's keys, and the port
		wrong                string
	}{
		{"", "BACKEND_TYPE", "redis  8081", ""},
		{"BACKEND_TYPE=Memcache MEMCACHE_KEY_FORMAT=Reference GRPC_PORT=x", "BACKEND_TYPE MEMCACHE_KEY_FORMAT", "memcache Reference 8081", ""},
		{"BACKEND_TYPE=memcache MEMCACHE_KEY_FORMAT=reference GRPC_PORT=9", "BACKEND_TYPE GRPC_PORT", "memcache  9", ""},
		{"BACKEND_TYPE=redis MEMCACHE_KEY_FORMAT=other", "BACKEND_TYPE MEMCACHE_KEY_FORMAT", "redis  8081", ""},
		{"BACKEND_TYPE=etcd", "GRPC_PORT", "redis  8081", ""},
		{
			"BACKEND_TYPE=etcd GRPC_PORT=x", "BACKEND_TYPE GRPC_PORT", "redis  8081",
			`GRPC_PORT="x": must be a port number from 0 to 65535` + "\n" + `BACKEND_TYPE="etcd": must be ` + store.takes(),
		},
	} {
		s, err := Only(strings.Fields(tt.environ), strings.Fields(tt.names)...)
		wrong := ""
		if err != nil {
			wrong = err.Error()
		}
		if got := s.Backend.Type + " " + s.Memcache.KeyFormat + " " + s.GRPC.Port; got != tt.want || wrong != tt.wrong {
			t.Errorf("%s, of which %s: %s, %q; want %s, %q", tt.environ, tt.names, got, wrong, tt.want, tt.wrong)
		}
	}
}

// TestBackendAssumed: if no variable is set, or none for the address of Redis, the reference's default applies, with a
// notice unless BACKEND_TYPE is set.
func TestBackendAssumed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		environ []string
		want    bool
	}{
		{nil, true},
		{[]string{"BACKEND_TYPE=", "REDIS_URL="}, true},
		{[]string{"REDIS_POOL_SIZE=5"}, true},
		{[]string{"BACKEND_TYPE=redis"}, false},
		{[]string{"BACKEND_TYPE=memory"}, false},
		{[]string{"REDIS_URL=/run/redis.sock"}, false},
	} {
		s, _, err := Parse(tt.environ)
		if err != nil || s.Backend.Assumed != tt.want {
			t.Errorf("%q: %v, assumed %v, want %v", tt.environ, err, s.Backend.Assumed, tt.want)
		}
		if s.Backend.Assumed && (s.Backend.Type != redis || s.Redis.Socket != "unix" || s.Redis.URL != "/var/run/nutcracker/ratelimit.sock") {
			t.Errorf("%q: %+v, %+v; want Redis at the reference's socket", tt.environ, s.Backend, s.Redis)
		}
	}
}

func TestSinks(t *testing.T) {
	t.Parallel()
	const problem = "unable to use more than one stats sink at the same time. Set one of USE_DOG_STATSD, USE_STATSD, USE_PROMETHEUS."
	if _, _, problems := parse(t, "USE_STATSD=true", "USE_PROMETHEUS=true"); len(problems) != 1 || !strings.Contains(problems[0], problem) {
		t.Errorf("two sinks: %q", problems)
	}
	if s, _, problems := parse(t, "USE_PROMETHEUS=true"); problems != nil || !s.Stats.Prometheus {
		t.Errorf("Prometheus alone: %q", problems)
	}
	if _, _, problems := parse(t, "USE_STATSD=true", "USE_PROMETHEUS=true", "DISABLE_STATS=true"); problems != nil {
		t.Errorf("statistics disabled: %q", problems)
	}
	for _, tt := range []struct {
		environ                 []string
		statsd, dog, prometheus bool
	}{
		{nil, true, false, false},
		{[]string{"USE_STATSD=1"}, true, false, false},
		{[]string{"USE_STATSD=false"}, false, false, false},
		{[]string{"USE_STATSD=false", "USE_PROMETHEUS=true"}, false, false, true},
		{[]string{"USE_PROMETHEUS=true"}, false, false, true},
		{[]string{"USE_STATSD=", "USE_DOG_STATSD=T"}, false, true, false},
	} {
		s, notices, problems := parse(t, tt.environ...)
		if problems != nil || notices != nil || s.Stats.Statsd != tt.statsd || s.Stats.DogStatsd != tt.dog || s.Stats.Prometheus != tt.prometheus {
			t.Errorf("%q: %+v, problems %q, notices %q", tt.environ, s.Stats, problems, notices)
		}
	}
}

func TestMogrifiers(t *testing.T) {
	t.Parallel()
	environ := []string{
		"USE_DOG_STATSD=true", "USE_DOG_STATSD_MOGRIFIERS=b,A", "DOG_STATSD_MOGRIFIER_A_PATTERN=x(.*)", "DOG_STATSD_MOGRIFIER_A_NAME=y",
		"DOG_STATSD_MOGRIFIER_A_TAGS=k:$1,j:v", "DOG_STATSD_MOGRIFIER_B_NAME=z", "EXTRA_TAGS=env:prod,zone:a.b", "DD_ENV=live",
	}
	s, _, problems := parse(t, environ...)
	want := []Mogrifier{{Key: "b", Name: "z"}, {Key: "A", Pattern: "x(.*)", Name: "y", Tags: [][2]string{{"k", "$1"}, {"j", "v"}}}}
	if d := cmp.Diff(want, s.Stats.Mogrifiers); d != "" || problems != nil {
		t.Errorf("problems %q, mogrifiers (-want +got):\n%s", problems, d)
	}
	if d := cmp.Diff(map[string]string{"env": "prod", "zone": "a.b"}, s.Stats.ExtraTags); d != "" || s.Stats.Datadog.Env != "live" {
		t.Errorf("tags of Datadog %+v, extra tags (-want +got):\n%s", s.Stats.Datadog, d)
	}
	_, _, problems = parse(t, append(environ, "DOG_STATSD_MOGRIFIER_A_TAGS=k")...)
	if len(problems) != 1 || !strings.HasPrefix(problems[0], `failed to load mogrifier A: DOG_STATSD_MOGRIFIER_A_TAGS="k": must be pairs`) {
		t.Errorf("problems %q", problems)
	}
}

func TestTLSNeedsBothFiles(t *testing.T) {
	t.Parallel()
	_, _, problems := parse(t, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=cert.pem")
	if len(problems) != 1 || !strings.Contains(problems[0], "needs GRPC_SERVER_TLS_KEY") {
		t.Errorf("problems = %q", problems)
	}
	if _, _, problems := parse(t, "DEBUG_TLS=true"); len(problems) != 2 || !strings.Contains(problems[0], "DEBUG_TLS=true needs GRPC_SERVER_TLS_CERT") {
		t.Errorf("problems = %q", problems)
	}
	if _, notices, problems := parse(t, "USE_STATSD=false", "DEBUG_TLS=true", "GRPC_SERVER_TLS_CERT=a", "GRPC_SERVER_TLS_KEY=b"); problems != nil || notices != nil {
		t.Errorf("problems = %q, notices = %q", problems, notices)
	}
	if _, _, problems := parse(t, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=a", "GRPC_SERVER_TLS_KEY=b"); problems != nil {
		t.Errorf("problems = %q", problems)
	}
}

func TestClientsWithCertificates(t *testing.T) {
	t.Parallel()
	tls := func(more ...string) []string {
		return append([]string{"USE_STATSD=false", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=a", "GRPC_SERVER_TLS_KEY=b"}, more...)
	}
	for _, tt := range []struct {
		environ []string
		want    string // part of the only problem or the only notice
	}{
		{tls("GRPC_CLIENT_TLS_SAN=envoy"), "GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT"},
		{tls("GRPC_CLIENT_TLS_CACERT=ca", "GRPC_CLIENT_TLS_SAN=,"), `GRPC_CLIENT_TLS_SAN=",": must be names separated by commas`},
		{tls("GRPC_CLIENT_TLS_CACERT=ca", "GRPC_CLIENT_TLS_SAN=envoy, "), `GRPC_CLIENT_TLS_SAN="envoy, ": must be names`},
		{tls("GRPC_SERVER_TLS_MIN_VERSION=1.1"), `GRPC_SERVER_TLS_MIN_VERSION="1.1": must be one of 1.2, 1.3`},
		{[]string{"USE_STATSD=false", "GRPC_SERVER_TLS_CERT=cert"}, "GRPC_SERVER_TLS_CERT has no effect without GRPC_SERVER_USE_TLS=true"},
		{[]string{"USE_STATSD=false", "GRPC_CLIENT_TLS_CACERT=ca"}, "GRPC_CLIENT_TLS_CACERT has no effect without GRPC_SERVER_USE_TLS=true"},
		{tls("GRPC_CLIENT_TLS_CACERT=ca", "GRPC_CLIENT_TLS_SAN=envoy, spiffe://c/ns/a", "GRPC_SERVER_TLS_MIN_VERSION=1.3"), ""},
		{tls("GRPC_SERVER_TLS_CA_CERT=ca"), ""},
	} {
		s, notices, problems := parse(t, tt.environ...)
		said := slices.Concat(notices, problems)
		if tt.want == "" && said != nil || tt.want != "" && (len(said) != 1 || !strings.Contains(said[0], tt.want)) {
			t.Errorf("%q: %q; want one line with %q", tt.environ, said, tt.want)
		}
		if d := cmp.Diff([]string{"envoy", "spiffe://c/ns/a"}, s.GRPC.ClientSANs); s.GRPC.MinTLS == "1.3" && d != "" {
			t.Errorf("names (-want +got):\n%s", d)
		}
	}
}

// The table of variables in docs/settings.md is the one in this package; run with -rewrite, or make docs, to write it.
func TestDocument(t *testing.T) {
	const (
		document   = "../../../docs/settings.md"
		begin, end = "<!-- variables: written by make docs -->\n", "<!-- end of variables -->"
	)
	goldentest.Section(t, document, [2]string{begin, end}, "\n"+Markdown()+"\n", *rewrite)
}

// TestReadOnlyConnectionsAreAlwaysClosed: a variable for permanent behaviour is accepted with any value, without a
// notice.
func TestReadOnlyConnectionsAreAlwaysClosed(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"true", "false", ""} {
		_, notices, err := Parse([]string{"REDIS_URL=127.0.0.1:6379", "USE_STATSD=false", "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR=" + value})
		if err != nil || notices != nil {
			t.Errorf("%q: %v, notices %q; want it taken", value, err, notices)
		}
	}
	if _, _, err := Parse([]string{"REDIS_URL=127.0.0.1:6379", "REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR=maybe"}); err == nil {
		t.Error("maybe is taken, want it invalid")
	}
}
