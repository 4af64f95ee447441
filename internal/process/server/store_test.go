package server

import (
	"crypto/tls"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// TestBackendTypes: every value of BACKEND_TYPE has a row with open and key.
func TestBackendTypes(t *testing.T) {
	t.Parallel()
	all := backendTypes(new(settings.Settings))
	if d := cmp.Diff(slices.Sorted(slices.Values(settings.BackendTypes())), slices.Sorted(maps.Keys(all))); d != "" {
		t.Errorf("rows (-settings +server):\n%s", d)
	}
	for name, b := range all {
		if b.open == nil || b.key == nil {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestUnsupported: each backend reports the rules that it cannot count.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	const (
		prepaid = "unit: forever, requests_per_unit: 5, count_refused: false"
		counted = "unit: minute, requests_per_unit: 5, "
		keyed   = " cannot be counted under REDIS_KEY_FORMAT=reference"
		cached  = " cannot be counted in memcached"
	)
	reference := []string{"BACKEND_TYPE=redis", "REDIS_KEY_FORMAT=reference"}
	cache := []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1"}
	for _, tt := range []struct {
		environ     []string
		limit, want string // start of the problem's text; empty if the rule is supported
	}{
		{[]string{"BACKEND_TYPE=memory"}, counted + "algorithm: token_bucket, rlqs: true", ""},
		{[]string{"BACKEND_TYPE=redis"}, counted + "algorithm: token_bucket, rlqs: true", ""},
		{reference, counted, ""},
		{reference, counted + "penalty: {for: 5m}", "a penalty" + keyed},
		{reference, counted + "reserve: {estimate: 5}", "reserve" + keyed},
		{reference, counted + "algorithm: token_bucket", "algorithm token_bucket" + keyed},
		{reference, counted + "rlqs: true", "rlqs" + keyed},
		{reference, counted + "rlqs: false", ""},
		{[]string{"BACKEND_TYPE=memory"}, prepaid, "unit: forever cannot be counted in memory"},
		{[]string{"BACKEND_TYPE=redis"}, prepaid, ""},
		{reference, prepaid, "unit: forever" + keyed},
		{cache, prepaid, "unit: forever" + cached},
		{cache, counted, ""},
		{cache, counted + "rlqs: true", "rlqs" + cached},
		{cache, counted + "algorithm: token_bucket", "algorithm token_bucket" + cached},
		{cache, counted + "align: first", "align: first" + cached},
		{cache, counted + "reserve: {estimate: 5}", "reserve" + cached},
	} {
		s := parsed(t, append(tt.environ, "USE_STATSD=false")...)
		got := Unsupported(&s)(rulefiletest.Load(t, "domain: edge\ndescriptors:\n  - {key: a, value: b, rate_limit: {"+tt.limit+"}}\n"))
		if tt.want == "" {
			if len(got) > 0 {
				t.Errorf("%s, %s: %v", tt.environ, tt.limit, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Line != 3 || got[0].Path != "edge.a_b" || !strings.HasPrefix(got[0].Text, tt.want) {
			t.Errorf("%s, %s: %v, want %q", tt.environ, tt.limit, got, tt.want)
		}
	}
}

// TestRedisConfig parses an environment with every Redis variable.
func TestRedisConfig(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t, "redis")
	s, notices, err := settings.Parse([]string{
		"USE_STATSD=false", "REDIS_TYPE=Sentinel", "REDIS_SOCKET_TYPE=TCP", "REDIS_URL=mymaster,s1:1,s2:2", "REDIS_AUTH=user:a:b",
		"REDIS_SENTINEL_AUTH=word", "REDIS_TLS=true", "REDIS_TLS_CACERT=" + files.CA, "REDIS_TLS_CLIENT_CERT=" + files.Cert,
		"REDIS_TLS_CLIENT_KEY=" + files.Key, "REDIS_POOL_SIZE=3", "REDIS_TIMEOUT=1s", "REDIS_OP_TIMEOUT=30ms", "REDIS_KEY_FORMAT=Reference",
		"CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=7", "REDIS_PERSECOND=true", "REDIS_PERSECOND_TYPE=cluster",
		"REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL=c1:1,c2:2", "REDIS_PERSECOND_AUTH_FILE=file", "REDIS_AUTH_MAX_AGE=15m",
		"REDIS_PERSECOND_SENTINEL_AUTH_FILE=other", "REDIS_PERSECOND_AUTH_MAX_AGE=10m",
		"REDIS_PERSECOND_POOL_SIZE=4", "REDIS_PERSECOND_TIMEOUT=2s", "REDIS_PERSECOND_OP_TIMEOUT=20ms",
	})
	if err != nil || len(notices) > 0 {
		t.Fatalf("settings: %v, %q", err, notices)
	}
	got, err := redisConfig(&s)
	if err != nil {
		t.Fatal(err)
	}
	want := redis.Config{
		Type: redis.Sentinel, Network: "tcp", URL: "mymaster,s1:1,s2:2", Auth: "user:a:b", SentinelAuth: "word", AuthMaxAge: 15 * time.Minute, PoolSize: 3,
		DialTimeout: time.Second, OpTimeout: 30 * time.Millisecond, KeyFormat: redis.ReferenceKeys, KeyPrefix: "p:", ExpirationJitter: 7 * time.Second,
		PerSecond: &redis.Config{
			Type: redis.Cluster, Network: "tcp", URL: "c1:1,c2:2", AuthFile: "file", SentinelAuthFile: "other", AuthMaxAge: 10 * time.Minute, PoolSize: 4,
			DialTimeout: 2 * time.Second, OpTimeout: 20 * time.Millisecond,
		},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(redis.Config{}, "TLS", "Observer", "Now")); d != "" {
		t.Errorf("config (-want +got):\n%s", d)
	}
	if got.TLS == nil || got.PerSecond.TLS != nil {
		t.Fatalf("TLS: %t, and per second: %t; want true and false", got.TLS != nil, got.PerSecond.TLS != nil)
	}
	followsFiles(t, got.TLS, files)
}

// followsFiles checks that load reads the certificate files again each time.
func followsFiles(t *testing.T, load func() (*tls.Config, error), files redistest.Certificates) {
	t.Helper()
	renewed := redistest.NewCertificates(t, "renewed")
	for from, to := range map[string]string{renewed.CA: files.CA, renewed.Cert: files.Cert, renewed.Key: files.Key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Certificates) != 1 || c.Certificates[0].Leaf.Subject.CommonName != "renewed" {
		t.Errorf("the certificates are %v, want the current one of the file", c.Certificates)
	}
}

// TestRedissTakesFiles: a rediss URL has the same effect as the TLS variable, and the files apply to both.
func TestRedissTakesFiles(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t, "redis")
	environ := []string{"USE_STATSD=false", "REDIS_TLS_CLIENT_CERT=" + files.Cert, "REDIS_TLS_CLIENT_KEY=" + files.Key, "REDIS_PERSECOND=true"}
	for _, tt := range []struct {
		url, perSecond        string
		wantFirst, wantSecond bool
	}{
		{"rediss://r:1", "s:1", true, false},
		{"redis://r:1", "REDISS://s:1", false, true},
	} {
		s := parsed(t, append(slices.Clone(environ), "REDIS_URL="+tt.url, "REDIS_PERSECOND_URL="+tt.perSecond)...)
		got, err := redisConfig(&s)
		if err != nil {
			t.Fatal(err)
		}
		if (got.TLS != nil) != tt.wantFirst || (got.PerSecond.TLS != nil) != tt.wantSecond {
			t.Errorf("%s and %s: files are used: %t and %t", tt.url, tt.perSecond, got.TLS != nil, got.PerSecond.TLS != nil)
		}
	}
}

// TestRedisConfigDefaults parses an environment that only selects Redis.
func TestRedisConfigDefaults(t *testing.T) {
	t.Parallel()
	s := parsed(t, "BACKEND_TYPE=redis")
	got, err := redisConfig(&s)
	if err != nil {
		t.Fatal(err)
	}
	want := redis.Config{
		Network: "unix", URL: "/var/run/nutcracker/ratelimit.sock", PoolSize: 10, DialTimeout: 250 * time.Millisecond,
		ExpirationJitter: 300 * time.Second,
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreFields(redis.Config{}, "Observer", "Now")); d != "" {
		t.Errorf("config (-want +got):\n%s", d)
	}
	s.Redis.TLS, s.Redis.CA = true, "nowhere.pem"
	if _, err := redisConfig(&s); err == nil || !strings.Contains(err.Error(), "nowhere.pem") || !strings.Contains(err.Error(), "REDIS_TLS_CACERT") {
		t.Errorf("a missing CA: %v, want an error with its path and variable", err)
	}
}

// TestMemcachedConfig parses a minimal environment, and one with every memcached variable.
func TestMemcachedConfig(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t, "memcached")
	for _, tt := range []struct {
		environ []string
		want    memcached.Config
		tls     bool
	}{
		{
			[]string{"MEMCACHE_HOST_PORT=a:1, b:2"},
			memcached.Config{Servers: []string{"a:1", "b:2"}, MaxIdleConns: 64, ExpirationJitter: 300 * time.Second},
			false,
		},
		{
			[]string{
				"MEMCACHE_HOST_PORT=a:1", "MEMCACHE_MAX_IDLE_CONNS=5", "MEMCACHE_OP_TIMEOUT=30ms",
				"MEMCACHE_KEY_FORMAT=Reference", "CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=7", "MEMCACHE_TLS=true",
				"MEMCACHE_TLS_CACERT=" + files.CA, "MEMCACHE_TLS_CLIENT_CERT=" + files.Cert, "MEMCACHE_TLS_CLIENT_KEY=" + files.Key,
				"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION=true",
			},
			memcached.Config{
				Servers: []string{"a:1"}, MaxIdleConns: 5, OpTimeout: 30 * time.Millisecond,
				KeyFormat: memcached.ReferenceKeys, KeyPrefix: "p:", ExpirationJitter: 7 * time.Second,
			},
			true,
		},
	} {
		s, notices, err := settings.Parse(append(tt.environ, "USE_STATSD=false", "BACKEND_TYPE=memcache"))
		if err != nil || len(notices) > 0 {
			t.Fatalf("settings: %v, %q", err, notices)
		}
		got, err := memcachedConfig(&s)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(memcached.Config{}, "TLS", "Observer", "Now")); d != "" {
			t.Errorf("config (-want +got):\n%s", d)
		}
		if (got.TLS != nil) != tt.tls {
			t.Fatalf("there is TLS: %t", got.TLS != nil)
		}
		if !tt.tls {
			continue
		}
		c, err := got.TLS()
		if err != nil || !c.InsecureSkipVerify || c.VerifyConnection == nil {
			t.Errorf("TLS is %v, %v", c, err)
		}
		followsFiles(t, got.TLS, files)
	}
}

func TestNearCacheConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  []string
		want nearcache.Config
	}{
		{nil, nearcache.Config{Keys: 100_000, Rejection: time.Second}},
		{
			[]string{"NEAR_CACHE_KEYS=7", "NEAR_CACHE_REJECTION=3s", "REDIS_OP_TIMEOUT=50ms"},
			nearcache.Config{Keys: 7, Rejection: 3 * time.Second, Budget: 50 * time.Millisecond},
		},
		{[]string{"NEAR_CACHE_KEYS=0", "NEAR_CACHE_REJECTION=0", "NEAR_CACHE_LEASES=false"}, nearcache.Config{Keys: -1, Rejection: -1, NoLeases: true}},
		{[]string{"REDIS_KEY_FORMAT=reference"}, nearcache.Config{Keys: 100_000, Rejection: time.Second, NoLeases: true}},
		{[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1"}, nearcache.Config{Keys: 100_000, Rejection: time.Second, NoLeases: true}},
		{[]string{"LOCAL_CACHE_SIZE_IN_BYTES=1", "NEAR_CACHE_REJECTION=0"}, nearcache.Config{Keys: 100_000, Rejection: math.MaxInt64}},
		{[]string{"LOCAL_CACHE_SIZE_IN_BYTES=1", "NEAR_CACHE_KEYS=0"}, nearcache.Config{Rejection: math.MaxInt64, NoLeases: true}},
		{
			[]string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1", "MEMCACHE_OP_TIMEOUT=70ms", "REDIS_OP_TIMEOUT=1s"},
			nearcache.Config{Keys: 100_000, Rejection: time.Second, Budget: 70 * time.Millisecond, NoLeases: true},
		},
		{
			[]string{"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=a:1", "REDIS_OP_TIMEOUT=50ms", "REDIS_PERSECOND_OP_TIMEOUT=70ms"},
			nearcache.Config{Keys: 100_000, Rejection: time.Second, Budget: 70 * time.Millisecond},
		},
		{
			[]string{"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL=a:1", "REDIS_OP_TIMEOUT=50ms"},
			nearcache.Config{Keys: 100_000, Rejection: time.Second},
		},
	} {
		s := parsed(t, append([]string{"BACKEND_TYPE=redis"}, c.env...)...)
		if d := cmp.Diff(c.want, nearCacheConfig(&s), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Now" }, cmp.Ignore())); d != "" {
			t.Errorf("%q (-want +got):\n%s", c.env, d)
		}
	}
}
