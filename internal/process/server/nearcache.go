package server

import (
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
)

// nearCacheConfig returns the configuration that the NEAR_CACHE_ variables set. LOCAL_CACHE_SIZE_IN_BYTES enables
// envoyproxy/ratelimit's local cache, in which a rejection lasts until its window ends. Its size is ignored, because
// NEAR_CACHE_KEYS bounds the cache; NEAR_CACHE_KEYS=0, which turns off ratelimitd's extensions, then means the default bound.
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

// newNearCache puts a near cache in front of a remote backend. The memory backend needs none.
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
		if s.Backend.LocalCache > 0 { // envoyproxy/ratelimit's metrics, without the average access time, which has no meaning here
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
