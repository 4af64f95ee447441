package server

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/storehealth"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// inMemcached completes the error for a limit that memcached cannot count. The text before it names the feature.
const inMemcached = " cannot be counted in memcached, which supports one fixed_window per descriptor; remove this, or set BACKEND_TYPE=redis"

func memcachedKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	c := memcached.Config{KeyPrefix: s.Backend.KeyPrefix, KeyFormat: keyFormat(s.Memcache.KeyFormat, memcached.OurKeys, memcached.ReferenceKeys)}
	return c.Key(op, now)
}

// openMemcached returns the store for BACKEND_TYPE=memcache.
func openMemcached(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	c, err := memcachedConfig(s)
	if err != nil {
		return nil, err
	}
	o := storehealth.Observe(storehealth.Config{
		Name:   "memcached",
		Policy: storehealth.Policy{Optional: !failsWithout(s)},
		Failed: "memcached operations failed",
		Events: map[remote.EventKind]storehealth.Line{
			remote.EventConnectFailed: {Level: slog.LevelWarn, Text: "cannot connect to memcached"},
			remote.EventConnected:     {Level: slog.LevelInfo, Text: "connected to memcached"},
		},
	}, log, r, h)
	c.Observer, c.Command = o.Remote(), memcachedCommands(r)
	b, err := memcached.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w (MEMCACHE_HOST_PORT and the other MEMCACHE_ variables)", err)
	}
	near := newNearCache(s, r, t.Backend(o.Counted(b), tracing.Store{Span: "Memcached Fetch Execution", Length: "keysToGet length"}))
	return &store{
		Backend:        near,
		Store:          o.Store,
		waits:          b.Waits,
		near:           near,
		tasks:          []task.Task{task.Func{Name: "memcached", Do: b.Run}, near},
		name:           "memcached",
		what:           "memcached: counters are shared by all replicas that use it",
		unshared:       "memcached does not share controls",
		referenceNames: c.KeyFormat == memcached.ReferenceKeys,
	}, nil
}

func memcachedConfig(s *settings.Settings) (memcached.Config, error) {
	m := &s.Memcache
	c := memcached.Config{
		KeyPrefix:        s.Backend.KeyPrefix,
		ExpirationJitter: time.Duration(s.Backend.JitterSeconds) * time.Second,
		Servers:          m.Servers,
		MaxIdleConns:     m.MaxIdleConns,
		OpTimeout:        m.OpTimeout,
		KeyFormat:        keyFormat(m.KeyFormat, memcached.OurKeys, memcached.ReferenceKeys),
	}
	if m.TLS {
		files := remote.TLSFiles{CA: m.CA, Cert: m.Cert, Key: m.Key, SkipHostname: m.SkipHostname}
		if _, err := files.Load(); err != nil {
			return c, fmt.Errorf("%w (MEMCACHE_TLS_CACERT, MEMCACHE_TLS_CLIENT_CERT, MEMCACHE_TLS_CLIENT_KEY)", err)
		}
		c.TLS = files.Load
	}
	return c, nil
}

// memcachedCommands returns a function that counts commands by name and code, under the reference's metric names. All series
// start at 0.
func memcachedCommands(r *stats.Registry) func(memcached.Command) {
	requested, found := r.Counter(stats.MemcacheKeysRequested), r.Counter(stats.MemcacheKeysFound)
	all := map[memcached.Command]*count.Counter{
		{Name: memcached.CommandIncrement, Code: memcached.CodeMiss}: r.Counter(stats.MemcacheIncrement, string(memcached.CodeMiss)),
		{Name: memcached.CommandAdd, Code: memcached.CodeNotStored}:  r.Counter(stats.MemcacheAdd, string(memcached.CodeNotStored)),
	}
	for name, metric := range map[memcached.CommandName]stats.Metric{
		memcached.CommandMultiGet: stats.MemcacheMultiget, memcached.CommandIncrement: stats.MemcacheIncrement, memcached.CommandAdd: stats.MemcacheAdd,
	} {
		for _, code := range []memcached.Code{memcached.CodeSuccess, memcached.CodeError} {
			all[memcached.Command{Name: name, Code: code}] = r.Counter(metric, string(code))
		}
	}
	return func(c memcached.Command) {
		requested.Add(uint64(c.Keys))
		found.Add(uint64(c.Found))
		if n := all[memcached.Command{Name: c.Name, Code: c.Code}]; n != nil {
			n.Add(1)
		}
	}
}
