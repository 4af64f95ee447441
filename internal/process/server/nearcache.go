package server

import (
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
)

// nearCacheConfig returns what the NEAR_CACHE_ variables ask for. LOCAL_CACHE_SIZE_IN_BYTES asks for
// envoyproxy/ratelimit's local cache, in which a rejection lasts until its window ends; the size does not matter here,
// since NEAR_CACHE_KEYS is the bound, or its default where it is 0: that turns off what envoyproxy/ratelimit does not have.
func nearCacheConfig(s *settings.Settings) nearcache.Config {
	row := backendTypes(s)[s.Backend.Type]
	c := nearcache.Config{
		Keys: s.NearCache.Keys, Rejection: s.NearCache.Rejection, Budget: row.timeout, NoLeases: !s.NearCache.Leases || !row.leases,
	}
	if c.Keys == 0 {
		c.Keys, c.NoLeases = -1, true
	}
	switch {
	case s.Backend.LocalCache > 0:
		c.Keys, c.Rejection = max(c.Keys, 0), nearcache.UntilEnd
	case c.Rejection == 0:
		c.Rejection = -1
	}
	return c
}

// newNearCache puts a near cache in front of a store that is a round trip away. In front of counters in this process it
// would only cost time.
func newNearCache(s *settings.Settings, r *stats.Registry, b backend.Backend) *nearcache.Backend {
	near := nearcache.New(b, nearCacheConfig(s))
	r.Source(func(v *stats.Values) {
		now := near.Stats()
		v.Gauge(stats.NearCacheEntries, float64(now.Entries))
		v.Gauge(stats.NearCacheHeld, float64(now.Held))
		v.Counter(stats.NearCacheHitsTotal, now.Hits)
		v.Counter(stats.NearCacheRejectionsTotal, now.Rejections)
		v.Counter(stats.NearCacheEvictionsTotal, now.Evictions)
		v.Counter(stats.NearCacheLeasedTotal, now.Leased)
		v.Counter(stats.NearCacheSpentTotal, now.Spent)
		v.Counter(stats.NearCacheReturnedTotal, now.Returned)
		v.Counter(stats.NearCacheFullTotal, now.Full)
		v.Counter(stats.NearCacheEndedTotal, now.Ended)
		v.Counter(stats.NearCacheResetTotal, now.Reset)
		v.Counter(stats.NearCacheFailedTotal, now.Failed)
		v.Counter(stats.NearCacheUnspentTotal, now.Unspent)
		if s.Backend.LocalCache > 0 { // as envoyproxy/ratelimit has them, but for the average access time, which would mean nothing here
			v.Gauge(stats.LocalCacheHitCount, float64(now.Rejections))
			v.Gauge(stats.LocalCacheMissCount, float64(now.Misses))
			v.Gauge(stats.LocalCacheLookupCount, float64(now.Rejections+now.Misses))
			v.Gauge(stats.LocalCacheEntryCount, float64(now.Remembered))
			v.Gauge(stats.LocalCacheEvacuateCount, float64(now.Forgotten))
			v.Gauge(stats.LocalCacheExpiredCount, float64(now.Expired))
		}
	})
	return near
}
