package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/storehealth"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// assumedHint tells the user how to configure a backend, or how to silence the warning about the default one.
const assumedHint = "set REDIS_URL=host:port if Redis is elsewhere, BACKEND_TYPE=memory to try this without Redis, or BACKEND_TYPE=redis to keep the default without this warning"

// inReference completes the error for a limit that cannot be counted under the reference's names. The text before it names the
// feature.
const inReference = " cannot be counted under REDIS_KEY_FORMAT=reference, which supports one fixed_window per descriptor; " +
	"unset that variable, or remove this until all servers run ratelimitd"

// redisTimeout returns the timeout of an operation: the longer one of two Redis servers. 0 means until the caller's deadline.
func redisTimeout(s *settings.Settings) time.Duration {
	first, second := s.Redis.OpTimeout, s.RedisPerSecond.OpTimeout
	switch {
	case !s.RedisPerSecond.On:
		return first
	case first == 0 || second == 0:
		return 0
	}
	return max(first, second)
}

func redisKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	c := redis.Config{KeyPrefix: s.Backend.KeyPrefix, KeyFormat: keyFormat(s.Redis.KeyFormat, redis.OurKeys, redis.ReferenceKeys)}
	return c.Key(op, now)
}

// keyFormat returns the format of keys that a variable asks for.
func keyFormat[F any](asked string, ours, reference F) F {
	if asked == "" {
		return ours
	}
	return reference
}

// openRedis returns the store for BACKEND_TYPE=redis.
func openRedis(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	c, err := redisConfig(s)
	if err != nil {
		return nil, err
	}
	o := observeRedis(s, log, r, h)
	prepaid := newPrepaid(log, h)
	c.Observer, c.Evicted, c.Policy = o.Remote(), evictions(log, r), prepaid.policy
	breaker := c.Observer.Breaker
	c.Observer.Breaker = func(node, state string) {
		r.Counter(stats.BackendEvictedKeysTotal, node) // from the start, at 0
		if breaker(node, state); state == remote.Gone {
			prepaid.policy(node, "noeviction") // a removed node holds no budgets
		}
	}
	b, err := redis.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w (REDIS_URL and the other REDIS_ variables)", err)
	}
	r.Source(redisPools(b))
	counted := func(b backend.Backend) backend.Backend {
		return t.Backend(o.Counted(b), tracing.Store{Span: "Redis Pipeline Execution", Length: "pipeline length"})
	}
	near := newNearCache(s, r, counted(b))
	v := &store{
		Backend: near,
		Store:   o.Store,
		waits:   b.Waits,
		near:    near,
		prepaid: prepaid,
		name:    "redis",
		tasks:   []task.Task{task.Func{Name: "redis", Do: b.Run}, near},
		what:    "redis (" + strings.ToLower(s.Redis.Type) + "): counters are shared by all replicas that use it",

		referenceNames: c.KeyFormat == redis.ReferenceKeys,
	}
	if s.Admin.On {
		aside, err := openAside(c)
		if err != nil {
			return nil, err
		}
		v.operators = near.Via(counted(asideStore{aside}))
		v.tasks = slices.Insert(v.tasks, 0, task.Task(task.Func{Name: "redis for operators", Do: aside.Run}))
	}
	if c.KeyFormat == redis.OurKeys {
		register := func(name string, most int) *replicated.ScriptStore {
			return replicated.NewScriptStore(b.SideChannel(name, replicated.Script), most)
		}
		v.controls = register("controls", controls.MaxKept)
		v.reservationKey = register("controls", controls.MaxKept).Secret // over its own connection
		v.audit = audit.ScriptStore{SideChannel: b.SideChannel("audit", audit.Script)}
		v.rows = rlqs.NewTables(func(name string) rlqs.SideChannel { return b.SideChannel(name, rlqs.Script) })
		if s.Redis.Tenants {
			v.tenants = register("tenants", tenants.MaxTenants)
		}
	} else if v.unshared = "REDIS_KEY_FORMAT=reference does not share controls"; s.Redis.Tenants {
		return nil, errors.New("TENANTS_REDIS=true does not work with REDIS_KEY_FORMAT=reference")
	}
	if s.Backend.Assumed {
		log.Warn("neither BACKEND_TYPE nor REDIS_URL is set, so counters are assumed to be in Redis, at envoyproxy/ratelimit's default socket",
			"socket", s.Redis.URL, "hint", assumedHint)
		v.what = "redis at " + c.URL + ", by default: " + assumedHint
	}
	return v, nil
}

// observeRedis returns an observer of Redis. After the first connection, lost connections fail health only if
// REDIS_HEALTH_CHECK_ACTIVE_CONNECTION is true.
func observeRedis(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker) *storehealth.Observer {
	return storehealth.Observe(storehealth.Config{
		Name:    "redis",
		Policy:  storehealth.Policy{Optional: !failsWithout(s), Follows: s.Redis.HealthActive},
		Classes: []remote.Class{redis.ClassReadOnly, redis.ClassBusy, redis.ClassLoading, redis.ClassClusterDown, redis.ClassNoAuth, redis.ClassNoScript},
		Failed:  "redis operations failed",
		Events: map[remote.EventKind]storehealth.Line{
			remote.EventConnectFailed: {Level: slog.LevelWarn, Text: "cannot connect to redis"},
			remote.EventConnected:     {Level: slog.LevelInfo, Text: "connected to redis"},
			redis.EventDataChanged:    {Level: slog.LevelWarn, Text: "redis was restarted or replaced, and may have lost counters"},
			redis.EventMaxMemory: {
				Level: slog.LevelWarn,
				Text:  "redis may evict counters, which lifts limits early: set maxmemory-policy to noeviction or volatile-ttl",
			},
			redis.EventMasterChanged: {Level: slog.LevelInfo, Text: "the sentinels name a different master"},
		},
	}, log, r, h)
}

// evictions returns a function that counts and logs evicted keys. Each may have been a counter.
func evictions(log *slog.Logger, r *stats.Registry) func(node string, keys int64) {
	lines := throttle.Every(10 * time.Second)
	return func(node string, keys int64) {
		if keys <= 0 {
			return
		}
		r.Counter(stats.BackendEvictedKeysTotal, node).Add(uint64(keys))
		lines.Through(log, node).Warn("redis evicted keys because it ran out of memory: a counter among them starts from zero", "node", node, "keys", keys)
	}
}

// openAside returns a backend for the admin API. It differs from c in its connection pool and has no observers.
func openAside(c redis.Config) (*redis.Backend, error) {
	c.PoolSize, c.Observer, c.Evicted, c.Policy = 1, remote.Observer{}, nil, nil // the main backend reports these
	if c.PerSecond != nil {
		second := *c.PerSecond
		second.PoolSize, c.PerSecond = 1, &second
	}
	return redis.New(c)
}

// asideAtOnce is the number of operations in a batch of the admin API. Redis executes a batch in less than a millisecond, and a
// batch is smaller than 64 KiB, so decisions between batches do not wait for long.
const asideAtOnce = 64

// asideStore sends operations of the admin API over its own connection, so that decisions never queue behind them.
type asideStore struct{ *redis.Backend }

// Apply implements [backend.Backend].
func (s asideStore) Apply(ctx context.Context, ops []backend.Op) {
	for part := range slices.Chunk(ops, asideAtOnce) {
		s.Backend.Apply(ctx, part)
	}
}

func redisConfig(s *settings.Settings) (redis.Config, error) {
	r, p := &s.Redis, &s.RedisPerSecond
	files := remote.TLSFiles{CA: r.CA, Cert: r.Cert, Key: r.Key, SkipHostname: r.SkipHostname}
	if r.OverTLS() || p.OverTLS() {
		if _, err := files.Load(); err != nil {
			return redis.Config{}, fmt.Errorf("%w (REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY)", err)
		}
	}
	c := redisServer(&r.RedisServer, files)
	c.KeyPrefix = s.Backend.KeyPrefix
	c.KeyFormat = keyFormat(s.Redis.KeyFormat, redis.OurKeys, redis.ReferenceKeys)
	c.ExpirationJitter = time.Duration(s.Backend.JitterSeconds) * time.Second
	if p.On {
		c.PerSecond = new(redisServer(&p.RedisServer, files))
	}
	return c, nil
}

func redisServer(r *settings.RedisServer, files remote.TLSFiles) redis.Config {
	c := redis.Config{
		Type:             redisType(r.Type),
		Network:          strings.ToLower(r.Socket),
		URL:              r.URL,
		Auth:             r.Auth,
		AuthFile:         r.AuthFile,
		SentinelAuth:     r.SentinelAuth,
		SentinelAuthFile: r.SentinelAuthFile,
		AuthMaxAge:       r.AuthMaxAge,
		PoolSize:         r.PoolSize,
		OpTimeout:        r.OpTimeout,
		DialTimeout:      r.DialTimeout,
	}
	if r.OverTLS() {
		c.TLS = files.Load
	}
	return c
}

func redisType(name string) redis.Type {
	switch strings.ToLower(name) {
	case "sentinel":
		return redis.Sentinel
	case "cluster":
		return redis.Cluster
	}
	return redis.Single
}
