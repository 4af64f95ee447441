package server

import (
	"log/slog"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/health"
	"github.com/ratelimitd/ratelimitd/internal/remote"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// redisObserver counts and logs what Redis does, and reports it to health.
type redisObserver struct{ *storeObserver }

// newRedisObserver returns an observer of Redis. After the first connection health depends on connections only if
// REDIS_HEALTH_CHECK_ACTIVE_CONNECTION says so.
func newRedisObserver(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker) redisObserver {
	o := redisObserver{newStoreObserver("redis", log, r, healthOf("redis", s, h, s.Redis.HealthActive))}
	o.classes(redis.ClassReadOnly, redis.ClassBusy, redis.ClassLoading, redis.ClassClusterDown, redis.ClassNoAuth, redis.ClassNoScript)
	o.events(redis.EventDataChanged, redis.EventMaxMemory, redis.EventMasterChanged, redis.EventDenied, redis.EventLimited, redis.EventLacking, redis.EventPermitted)
	o.perNode = []stats.Metric{stats.BackendEvictedKeysTotal}
	return o
}

func (o redisObserver) observer() remote.Observer {
	return remote.Observer{Batch: o.batch, Breaker: o.breaker, Connections: o.health.Connected, Event: o.event}
}

func (o redisObserver) batch(b remote.Batch) {
	if attrs, ok := o.storeObserver.batch(b); ok {
		o.log.Warn("redis operations failed", attrs...)
	}
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

// event logs and counts what an operator should know about.
func (o redisObserver) event(e remote.Event) {
	switch e.Kind {
	case remote.EventConnectFailed:
		o.health.ConnectFailed(e.Err)
	case redis.EventDenied:
		o.health.Denied(e.Node, e.Err.Error()+"; allow it in Redis: "+e.Detail)
	case redis.EventPermitted:
		o.health.Permitted(e.Node)
	case remote.EventConnected, redis.EventDataChanged, redis.EventMaxMemory, redis.EventMasterChanged, redis.EventLimited, redis.EventLacking:
	}
	attrs, ok := o.storeObserver.event(e)
	if !ok {
		return
	}
	names := map[remote.EventKind]string{redis.EventDenied: "allow", redis.EventLimited: "allow", redis.EventLacking: "commands"}
	if i := slices.Index(attrs, any("detail")); i >= 0 && names[e.Kind] != "" {
		attrs[i] = names[e.Kind]
	}
	switch e.Kind {
	case remote.EventConnectFailed:
		o.log.Warn("cannot connect to redis", attrs...)
	case remote.EventConnected:
		o.log.Info("connected to redis", attrs...)
	case redis.EventDataChanged:
		o.log.Warn("redis was restarted or replaced, and may have lost counters", attrs...)
	case redis.EventMaxMemory:
		o.log.Warn("redis may evict counters, which lifts limits early: set maxmemory-policy to noeviction or volatile-ttl", attrs...)
	case redis.EventMasterChanged:
		o.log.Info("the sentinels name a different master", attrs...)
	case redis.EventDenied:
		o.log.Error("the redis user lacks permissions that decisions need", attrs...)
	case redis.EventLimited:
		o.log.Warn("the redis user may not use the keys of every domain", attrs...)
	case redis.EventLacking:
		o.log.Warn("redis, or a proxy in front of it, lacks some commands, which are done without", attrs...)
	case redis.EventPermitted:
		o.log.Info("the redis user has the permissions that decisions need now", attrs...)
	}
}
