package server

import (
	"crypto/tls"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// TestRedisConfig reads an environment in which every variable of Redis is set.
func TestRedisConfig(t *testing.T) {
	t.Parallel()
	files := redistest.NewCertificates(t, "redis")
	s, notices, err := settings.Parse([]string{
		"USE_STATSD=false", "REDIS_TYPE=Sentinel", "REDIS_SOCKET_TYPE=TCP", "REDIS_URL=mymaster,s1:1,s2:2", "REDIS_AUTH=user:a:b",
		"REDIS_SENTINEL_AUTH=word", "REDIS_TLS=true", "REDIS_TLS_CACERT=" + files.CA, "REDIS_TLS_CLIENT_CERT=" + files.Cert,
		"REDIS_TLS_CLIENT_KEY=" + files.Key, "REDIS_POOL_SIZE=3", "REDIS_TIMEOUT=1s", "REDIS_OP_TIMEOUT=30ms", "REDIS_KEY_FORMAT=Reference",
		"CACHE_KEY_PREFIX=p:", "EXPIRATION_JITTER_MAX_SECONDS=7", "REDIS_PERSECOND=true", "REDIS_PERSECOND_TYPE=cluster",
		"REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL=c1:1,c2:2", "REDIS_PERSECOND_AUTH_FILE=file", "REDIS_AUTH_MAX_AGE=15m",
		"REDIS_PERSECOND_SENTINEL_AUTH_FILE=other", "REDIS_PERSECOND_AUTH_MAX_AGE=10m", "REDIS_PERSECOND_POOL_SIZE=4", "REDIS_PERSECOND_TIMEOUT=2s", "REDIS_PERSECOND_OP_TIMEOUT=20ms",
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
		t.Fatalf("there is TLS: %t, and per second: %t; want it, and not", got.TLS != nil, got.PerSecond.TLS != nil)
	}
	followsFiles(t, got.TLS, files)
}

// followsFiles checks that TLS to a store uses the current contents of its files each time.
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
		t.Errorf("the certificates are %v, want that which the file holds now", c.Certificates)
	}
}

// TestRedissTakesFiles: a URL that asks for TLS has the same effect as the variable, and the files apply to both.
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
		s, _, err := settings.Parse(append(slices.Clone(environ), "REDIS_URL="+tt.url, "REDIS_PERSECOND_URL="+tt.perSecond))
		if err != nil {
			t.Fatal(err)
		}
		got, err := redisConfig(&s)
		if err != nil {
			t.Fatal(err)
		}
		if (got.TLS != nil) != tt.wantFirst || (got.PerSecond.TLS != nil) != tt.wantSecond {
			t.Errorf("%s and %s: files are used: %t and %t", tt.url, tt.perSecond, got.TLS != nil, got.PerSecond.TLS != nil)
		}
	}
}

// TestRedisConfigDefaults reads an environment that only says that there is a Redis.
func TestRedisConfigDefaults(t *testing.T) {
	t.Parallel()
	s, _, err := settings.Parse([]string{"BACKEND_TYPE=redis"})
	if err != nil {
		t.Fatal(err)
	}
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
		t.Errorf("a CA that is not there: %v, want an error with its path and variable", err)
	}
}
