package server

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
)

func TestNearCacheConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env  []string
		want nearcache.Config
	}{
		{nil, nearcache.Config{Keys: 100_000, Rejection: time.Second}},
		{[]string{"NEAR_CACHE_KEYS=7", "NEAR_CACHE_REJECTION=3s", "REDIS_OP_TIMEOUT=50ms"}, nearcache.Config{Keys: 7, Rejection: 3 * time.Second, Budget: 50 * time.Millisecond}},
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
		s, _, err := settings.Parse(append([]string{"BACKEND_TYPE=redis"}, c.env...))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, nearCacheConfig(&s), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Now" }, cmp.Ignore())); d != "" {
			t.Errorf("%q (-want +got):\n%s", c.env, d)
		}
	}
}
