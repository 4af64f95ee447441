package server

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// assumedHint says what to set where Redis is elsewhere, or there is none, and the others how to silence it.
const assumedHint = "set REDIS_URL=host:port if Redis is elsewhere, BACKEND_TYPE=memory to try this without Redis, or BACKEND_TYPE=redis to keep the default without this warning"

// inReference says why there are only fixed windows under the reference's names, and what to do about it.
const inReference = " cannot be counted under REDIS_KEY_FORMAT=reference, which supports one fixed_window per descriptor; " +
	"unset that variable, or remove this until all servers run ratelimitd"

func redisSimple(s *settings.Settings) string {
	if s.Redis.KeyFormat == "" {
		return ""
	}
	return inReference
}

// redisNear leases nothing under the reference's names, whose servers would take leased hits for spent ones. Of two Redis
// the slower one's timeout counts.
func redisNear(s *settings.Settings) (leases bool, timeout time.Duration) {
	timeout = s.Redis.OpTimeout
	if second := s.RedisPerSecond.OpTimeout; s.RedisPerSecond.On && timeout > 0 {
		if timeout = max(timeout, second); second == 0 {
			timeout = 0
		}
	}
	return s.Redis.KeyFormat == "", timeout
}

func redisKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	c := redis.Config{KeyPrefix: s.Backend.KeyPrefix, KeyFormat: redisKeyFormat(s)}
	return c.Key(op, now)
}

func redisKeyFormat(s *settings.Settings) redis.KeyFormat {
	if s.Redis.KeyFormat == "" {
		return redis.OurKeys
	}
	return redis.ReferenceKeys
}

// openRedis returns the store for BACKEND_TYPE=redis.
func openRedis(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	c, err := redisConfig(s)
	if err != nil {
		return nil, err
	}
	o := newRedisObserver(s, log, r, h)
	prepaid := newPrepaid(log, h)
	c.Observer, c.Evicted, c.Policy = o.observer(), o.evicted, prepaid.policy
	c.Observer.Breaker = func(node, state string) {
		o.breaker(node, state)
		if state == remote.Gone {
			prepaid.policy(node, "noeviction") // nothing is kept there
		}
	}
	b, err := redis.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w (REDIS_URL and the other REDIS_ variables)", err)
	}
	r.Source(redisPools(b))
	r.Source(storeWaits(b.Waits))
	counted := func(b backend.Backend) backend.Backend {
		return tracedStore(t, o.counted(b), tracing.Store{Span: "Redis Pipeline Execution", Length: "pipeline length"})
	}
	near := newNearCache(s, r, counted(b))
	v := &store{
		Backend: near,
		link:    network{o.health, o.storeObserver, b.Waits},
		near:    near,
		prepaid: prepaid,
		name:    o.name,
		tasks:   []task.Task{task.Func{Name: "redis", Do: b.Run}, near},
		what:    "redis (" + strings.ToLower(s.Redis.Type) + "): counters are shared by all replicas that use it",

		referenceNames: redisKeyFormat(s) == redis.ReferenceKeys,
	}
	if s.Admin.On {
		aside, err := openAside(c)
		if err != nil {
			return nil, err
		}
		v.operators = near.Via(counted(asideStore{aside}))
		v.tasks = slices.Insert(v.tasks, 0, task.Task(task.Func{Name: "redis for operators", Do: aside.Run}))
	}
	if redisKeyFormat(s) == redis.OurKeys {
		register := func(name string, most int) *replicated.ScriptStore {
			return replicated.NewScriptStore(b.SideChannel(name, replicated.Script), most)
		}
		v.controls = register("controls", controls.MaxKept)
		v.reservationKey = register("controls", controls.MaxKept).Secret // over a connection of its own
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

// openAside returns what asks Redis for operators, with c but for what is about connections.
func openAside(c redis.Config) (*redis.Backend, error) {
	c.PoolSize, c.Observer, c.Evicted, c.Policy = 1, remote.Observer{}, nil, nil // the others tell what happens
	if c.PerSecond != nil {
		second := *c.PerSecond
		second.PoolSize, c.PerSecond = 1, &second
	}
	return redis.New(c)
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
	c.KeyFormat = redisKeyFormat(s)
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
