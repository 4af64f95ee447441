package server

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/internal/task"
	"github.com/ratelimitd/ratelimitd/internal/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// assumedHint tells users whose Redis is elsewhere, or who have none, what to set, and the others how to silence it.
const assumedHint = "REDIS_URL=host:port says where Redis is; BACKEND_TYPE=memory tries this without one; BACKEND_TYPE=redis keeps the default, and this line away"

// store is where counters live.
type store struct {
	backend.Backend
	local *memory.Backend // for on_failure: local; the store itself if counters live in memory
	name  string          // of what holds the counters, for people; empty if that is this process
	task  task.Task       // keeps the store going; nil if it needs none
	near  task.Task       // of the near cache; nil if there is none
	what  string          // for people

	tried    <-chan struct{}                             // closed once a connection is up, or has failed; nil if none is needed
	check    func(*descriptors.Set) descriptors.Problems // what the store does not support in rules; nil if it supports everything
	away     func() string                               // why there is no connection, or empty; nil if none is needed
	notReady func() string                               // why nothing can be decided now, or empty; nil if everything always can be

	referenceNames bool // it keeps counters under envoyproxy/ratelimit's names
}

// newStore returns the store that BACKEND_TYPE asks for.
func newStore(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *task.Health, t *tracing.Tracer) (*store, error) {
	local := memory.New(memory.Config{MaxKeys: s.Backend.MemoryMaxKeys})
	r.Source(func(v *stats.Values) {
		now := local.Stats()
		v.Gauge(stats.MemoryKeys, float64(now.Keys))
		v.Counter(stats.MemoryForcedOutTotal, now.ForcedOut)
	})
	if s.Backend.Type == "memory" {
		return &store{Backend: tracedStore(t, local, s.Backend.Type), local: local, what: "memory: counters live in this process only, and end with it"}, nil
	}
	if s.Backend.Type == "memcache" {
		v, err := newMemcachedStore(s, log, r, h, t)
		if err != nil {
			return nil, err
		}
		v.local = local
		return v, nil
	}
	c, err := redisConfig(s)
	if err != nil {
		return nil, err
	}
	o := newRedisObserver(s, log, r, h)
	c.Observer, c.Evicted = o.observer(), o.evicted
	b, err := redis.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w (REDIS_URL and the other REDIS_ variables)", err)
	}
	r.Source(redisPools(b))
	near := newNearCache(s, r, tracedStore(t, o.counted(b), s.Backend.Type))
	v := &store{
		Backend:  near,
		near:     near,
		local:    local,
		name:     o.name,
		task:     task.Func{Name: "redis", Do: b.Run},
		what:     "redis (" + strings.ToLower(s.Redis.Type) + "): counters are shared by all replicas that use it",
		tried:    o.tried,
		away:     o.away,
		notReady: o.notReady,
	}
	if s.Backend.Assumed {
		log.Warn("nothing says where counters live, so they are taken to be in Redis, at the socket where envoyproxy/ratelimit looks for it",
			"socket", s.Redis.URL, "hint", assumedHint)
		v.what = "redis at " + c.URL + ", by default: " + assumedHint
	}
	if check := Unsupported(s); check != nil {
		v.check, v.referenceNames = func(set *descriptors.Set) descriptors.Problems {
			var names []string
			for d := range set.Domains() {
				names = append(names, d.Name)
			}
			b.SetDomains(names)
			return check(set)
		}, true
	}
	return v, nil
}

// Unsupported returns a function that finds what the store of these settings does not support in rules; nil if it
// supports everything.
func Unsupported(s *settings.Settings) func(*descriptors.Set) descriptors.Problems {
	switch {
	case s.Backend.Type == "memcache":
		return onlyFixedWindows(inMemcached)
	case s.Backend.Type == "redis" && s.Redis.KeyFormat != "":
		return onlyFixedWindows(inReference)
	}
	return nil
}

// CounterKey returns the name at now of the counter that op asks for, in the store of these settings. Where counters are
// in memory it is that which Redis would have.
func CounterKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	if s.Backend.Type == "memcache" {
		c := memcached.Config{KeyPrefix: s.Backend.KeyPrefix}
		if s.Memcache.KeyFormat != "" {
			c.KeyFormat = memcached.ReferenceKeys
		}
		return c.Key(op, now)
	}
	c := redis.Config{KeyPrefix: s.Backend.KeyPrefix}
	if s.Redis.KeyFormat != "" {
		c.KeyFormat = redis.ReferenceKeys
	}
	return c.Key(op, now)
}

// Why a store keeps only fixed windows, and what to do about it.
const (
	inReference = " cannot be counted under REDIS_KEY_FORMAT=reference, which takes one fixed_window per descriptor; " +
		"unset that variable, or leave this out until all servers are ratelimitd"
	inMemcached = " cannot be counted in memcached, which takes one fixed_window per descriptor; leave this out, or set BACKEND_TYPE=redis"
)

// onlyFixedWindows reports the rules of a set that envoyproxy/ratelimit's counters do not support; why says why there
// are only those.
func onlyFixedWindows(why string) func(*descriptors.Set) descriptors.Problems {
	return func(set *descriptors.Set) descriptors.Problems {
		var all descriptors.Problems
		for r := range set.Rules() {
			if what := beyondFixedWindow(r); what != "" {
				all = append(all, descriptors.Problem{File: r.File, Line: r.Line, Path: r.Path, Text: what + why})
			}
		}
		return all
	}
}

// beyondFixedWindow names what a rule asks for that the reference's counters do not support, or returns "".
func beyondFixedWindow(r *descriptors.Rule) string {
	if len(r.Limits) > 1 {
		return "a list of rate_limits"
	}
	if r.Penalty != nil {
		return "a penalty"
	}
	for i := range r.Limits {
		switch l := &r.Limits[i]; {
		case l.Algorithm != engine.FixedWindow:
			return "algorithm " + l.Algorithm.String()
		case l.Align != engine.AlignClock:
			return "align: first"
		case !l.CountRefused:
			return "a limit that does not count refused hits"
		}
	}
	return ""
}

func redisConfig(s *settings.Settings) (redis.Config, error) {
	r, p := &s.Redis, &s.RedisPerSecond
	files := remote.TLSFiles{CA: r.CA, Cert: r.Cert, Key: r.Key, SkipHostname: r.SkipHostname}
	if r.OverTLS() || p.OverTLS() {
		if _, err := files.Load(); err != nil {
			return redis.Config{}, fmt.Errorf("%w (REDIS_TLS_CACERT, REDIS_TLS_CLIENT_CERT, REDIS_TLS_CLIENT_KEY)", err)
		}
	}
	c := redis.Config{
		Type:             redisType(r.Type),
		Network:          strings.ToLower(r.Socket),
		URL:              r.URL,
		Auth:             r.Auth,
		AuthFile:         r.AuthFile,
		SentinelAuth:     r.SentinelAuth,
		KeyPrefix:        s.Backend.KeyPrefix,
		ExpirationJitter: time.Duration(s.Backend.JitterSeconds) * time.Second,
		PoolSize:         r.PoolSize,
		OpTimeout:        r.OpTimeout,
		DialTimeout:      r.DialTimeout,
	}
	if r.OverTLS() {
		c.TLS = files.Load
	}
	if r.KeyFormat != "" {
		c.KeyFormat = redis.ReferenceKeys
	}
	if !p.On {
		return c, nil
	}
	c.PerSecond = &redis.Config{
		Type:         redisType(p.Type),
		Network:      strings.ToLower(p.Socket),
		URL:          p.URL,
		Auth:         p.Auth,
		AuthFile:     p.AuthFile,
		SentinelAuth: p.SentinelAuth,
		PoolSize:     p.PoolSize,
		OpTimeout:    p.OpTimeout,
		DialTimeout:  p.DialTimeout,
	}
	if p.OverTLS() {
		c.PerSecond.TLS = files.Load
	}
	return c, nil
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

// defaultOnFailure returns DEFAULT_ON_FAILURE, which the settings have checked.
func defaultOnFailure(s *settings.Settings) descriptors.OnFailure {
	f, _ := descriptors.ParseOnFailure(strings.ToLower(s.Backend.OnFailure))
	return f
}
