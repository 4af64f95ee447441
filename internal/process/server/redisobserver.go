package server

import (
	"log/slog"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// redisObserver counts and logs what Redis does, and reports it to health.
type redisObserver struct{ *storeObserver }

// newRedisObserver returns an observer of Redis. After the first connection health depends on connections only if
// REDIS_HEALTH_CHECK_ACTIVE_CONNECTION says so.
func newRedisObserver(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker) redisObserver {
	o := redisObserver{newStoreObserver("redis", log, r, healthOf("redis", s, h, s.Redis.HealthActive), redisLines())}
	o.classes(redis.ClassReadOnly, redis.ClassBusy, redis.ClassLoading, redis.ClassClusterDown, redis.ClassNoAuth, redis.ClassNoScript)
	o.perNode = []stats.Metric{stats.BackendEvictedKeysTotal}
	return o
}

func redisLines() storeLines {
	return storeLines{"redis operations failed", map[remote.EventKind]eventLine{
		remote.EventConnectFailed: {slog.LevelWarn, "cannot connect to redis"},
		remote.EventConnected:     {slog.LevelInfo, "connected to redis"},
		redis.EventDataChanged:    {slog.LevelWarn, "redis was restarted or replaced, and may have lost counters"},
		redis.EventMaxMemory: {
			slog.LevelWarn, "redis may evict counters, which lifts limits early: set maxmemory-policy to noeviction or volatile-ttl",
		},
		redis.EventMasterChanged: {slog.LevelInfo, "the sentinels name a different master"},
	}}
}

// evicted counts keys that Redis evicted, each of which may have been a counter.
func (o redisObserver) evicted(node string, keys int64) {
	if keys <= 0 {
		return
	}
	o.registry.Counter(stats.BackendEvictedKeysTotal, node).Add(uint64(keys))
	if omitted, ok := o.throttle.Allow("evicted " + node); ok {
		o.log.Warn("redis evicted keys because it ran out of memory: a counter among them starts from zero", "node", node, "keys", keys, "omitted", omitted)
	}
}
