package server

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
)

// TestMemcachedConfig reads a minimal environment, and one in which every variable of memcached is set.
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
