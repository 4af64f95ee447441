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
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// inMemcached says why there are only fixed windows, and what to do about it.
const inMemcached = " cannot be counted in memcached, which supports one fixed_window per descriptor; remove this, or set BACKEND_TYPE=redis"

func memcachedSimple(*settings.Settings) string { return inMemcached }

// memcachedNear leases nothing, because unspent hits could not be refunded.
func memcachedNear(s *settings.Settings) (leases bool, timeout time.Duration) {
	return false, s.Memcache.OpTimeout
}

func memcachedKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	c := memcached.Config{KeyPrefix: s.Backend.KeyPrefix, KeyFormat: memcachedKeyFormat(s)}
	return c.Key(op, now)
}

func memcachedKeyFormat(s *settings.Settings) memcached.KeyFormat {
	if s.Memcache.KeyFormat == "" {
		return memcached.OurKeys
	}
	return memcached.ReferenceKeys
}

// openMemcached returns the store for BACKEND_TYPE=memcache.
func openMemcached(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	c, err := memcachedConfig(s)
	if err != nil {
		return nil, err
	}
	o := newMemcachedObserver(s, log, r, h)
	c.Observer, c.Command = o.observer(), o.command
	b, err := memcached.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w (MEMCACHE_HOST_PORT and the other MEMCACHE_ variables)", err)
	}
	r.Source(storeWaits(b.Waits))
	near := newNearCache(s, r, tracedStore(t, o.counted(b), tracing.Store{Span: "Memcached Fetch Execution", Length: "keysToGet length"}))
	return &store{
		Backend:        near,
		link:           network{o.health, o.storeObserver, b.Waits},
		near:           near,
		tasks:          []task.Task{task.Func{Name: "memcached", Do: b.Run}, near},
		name:           o.name,
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
		KeyFormat:        memcachedKeyFormat(s),
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

// memcachedObserver counts and logs what memcached does, and reports it to health.
type memcachedObserver struct {
	*storeObserver
	commands         map[memcached.Command]*count.Counter // by name and code
	requested, found *count.Counter
}

func newMemcachedObserver(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker) *memcachedObserver {
	o := &memcachedObserver{
		storeObserver: newStoreObserver("memcached", log, r, healthOf("memcached", s, h, false), memcachedLines()),
		commands:      make(map[memcached.Command]*count.Counter),
		requested:     r.Counter(stats.MemcacheKeysRequested),
		found:         r.Counter(stats.MemcacheKeysFound),
	}
	metrics := map[memcached.CommandName]stats.Metric{
		memcached.CommandMultiGet: stats.MemcacheMultiget, memcached.CommandIncrement: stats.MemcacheIncrement, memcached.CommandAdd: stats.MemcacheAdd,
	}
	for _, c := range []memcached.Command{
		{Name: memcached.CommandMultiGet, Code: memcached.CodeSuccess},
		{Name: memcached.CommandMultiGet, Code: memcached.CodeError},
		{Name: memcached.CommandIncrement, Code: memcached.CodeSuccess},
		{Name: memcached.CommandIncrement, Code: memcached.CodeMiss},
		{Name: memcached.CommandIncrement, Code: memcached.CodeError},
		{Name: memcached.CommandAdd, Code: memcached.CodeSuccess},
		{Name: memcached.CommandAdd, Code: memcached.CodeNotStored},
		{Name: memcached.CommandAdd, Code: memcached.CodeError},
	} {
		o.commands[c] = r.Counter(metrics[c.Name], string(c.Code))
	}
	return o
}

func memcachedLines() storeLines {
	return storeLines{"memcached operations failed", map[remote.EventKind]eventLine{
		remote.EventConnectFailed: {slog.LevelWarn, "cannot connect to memcached"},
		remote.EventConnected:     {slog.LevelInfo, "connected to memcached"},
	}}
}

func (o *memcachedObserver) command(c memcached.Command) {
	o.requested.Add(uint64(c.Keys))
	o.found.Add(uint64(c.Found))
	if n := o.commands[memcached.Command{Name: c.Name, Code: c.Code}]; n != nil {
		n.Add(1)
	}
}
