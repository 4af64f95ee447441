package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/secret"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/storehealth"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// store is the configured backend, with its health and what it provides to other parts.
type store struct {
	backend.Backend
	*storehealth.Store                                 // health of the backend
	waits              func() map[string]time.Duration // how long operations wait, by node; nil without nodes

	// operators reaches the same counters for the admin API; nil if Backend serves it too.
	operators        backend.Backend
	local            *memory.Backend    // for on_failure: local; the backend itself with BACKEND_TYPE=memory
	near             *nearcache.Backend // nil without a near cache
	tasks            []task.Task        // background tasks; the last one stops first
	name             string             // name of the backend, for people; empty for memory
	what             string             // description of the backend, for people
	keys             *secret.Keys       // from CACHE_KEY_SECRET_FILE; nil without it
	audit            audit.Store        // shared audit log; nil if the backend cannot hold one
	unsharedCounters string             // why replicas do not share counters; empty if they do

	prepaid *prepaid // checks for eviction of prepaid budgets; nil if the backend cannot hold any

	controls replicated.Store // shared controls; nil if the backend cannot hold them
	unshared string           // why replicas do not share controls; empty if they do
	tenants  replicated.Store // shared table of tenants; nil if it is not in the backend
	rows     rlqs.Rows        // shares of divided limits; nil if replicas do not share them

	reservationKey func(ctx context.Context, offered []byte) ([]byte, error) // key shared by all replicas; nil if the backend cannot hold one

	referenceNames bool // counters have envoyproxy/ratelimit's names
}

// Close implements [backend.Backend].
func (v *store) Close() error {
	var err error
	if v.operators != nil {
		err = v.operators.Close()
	}
	return errors.Join(err, v.Backend.Close())
}

// backendType describes a value of BACKEND_TYPE.
type backendType struct {
	// open returns the backend. Its arguments are those of newStore.
	open func(*settings.Settings, *slog.Logger, *stats.Registry, *health.Tracker, *tracing.Tracer) (*store, error)

	// simple completes the error for a limit other than a single fixed window; empty if the backend supports all limits.
	simple string
	// lasting reports whether counters survive until an operator resets them.
	lasting bool
	// leases reports whether a near cache may lease hits from the backend.
	leases bool
	// timeout bounds an operation; 0 means until the caller's deadline.
	timeout time.Duration
	// key returns the name of a counter.
	key func(*settings.Settings, *backend.Op, engine.Micros) string
}

// backendTypes returns the backend types by the value of BACKEND_TYPE.
func backendTypes(s *settings.Settings) map[string]backendType {
	redis := backendType{open: openRedis, lasting: true, leases: true, timeout: redisTimeout(s), key: redisKey}
	if s.Redis.KeyFormat != "" { // the reference's servers would count leased hits as spent
		redis.simple, redis.leases = inReference, false
	}
	return map[string]backendType{
		"memory":   {open: openMemory, key: redisKey}, // counters in memory have no names; Redis names can be compared
		"redis":    redis,
		"memcache": {open: openMemcached, simple: inMemcached, timeout: s.Memcache.OpTimeout, key: memcachedKey}, // no leases: memcached accepts no refunds
	}
}

// newStore opens the backend that BACKEND_TYPE names.
func newStore(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	v, err := backendTypes(s)[s.Backend.Type].open(s, log, r, h, t)
	if err != nil {
		return nil, err
	}
	if v.local == nil {
		v.local = newMemory(s, r)
	}
	if v.keys, err = secretKeys(s); err != nil {
		return nil, err
	}
	texts := secret.NewTexts(v.keys, log)
	if v.controls != nil {
		v.controls = texts.Register(secret.WithSecretCheck(v.controls, v.keys, log, h))
		v.audit = texts.Audit(v.audit)
	}
	if v.tenants != nil {
		v.tenants = texts.Register(v.tenants)
	}
	if v.waits == nil {
		return v, nil
	}
	r.Source(func(values *stats.Values) {
		for node, wait := range v.waits() {
			values.Gauge(stats.BackendWait, wait.Seconds(), node)
		}
	})
	return v, nil
}

// Unsupported returns a check for rules that the configured backend does not support.
func Unsupported(s *settings.Settings) func(*descriptors.Set) descriptors.Problems {
	row := backendTypes(s)[s.Backend.Type]
	if row.simple == "" && row.lasting {
		return configwatch.Quiet().Check
	}
	return func(set *descriptors.Set) (all descriptors.Problems) {
		for r := range set.Rules() {
			what := ""
			if row.simple != "" {
				what = beyondFixedWindow(r)
			}
			if r.Forever() && !row.lasting { // reported first, for example before count_refused
				what = engine.UnitForever
			}
			if what != "" {
				text := what + cmp.Or(row.simple, " cannot be counted in memory, which a restart empties; use BACKEND_TYPE=redis, or remove this")
				all = append(all, descriptors.Problem{File: r.File, Line: r.Line, Domain: r.DomainName(), Path: r.Path, Text: text})
			}
		}
		return all
	}
}

// CounterKey returns the name at now of the counter of op in the configured backend. For BACKEND_TYPE=memory it returns the name
// that Redis would use.
func CounterKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	return backendTypes(s)[s.Backend.Type].key(s, op, now)
}

// newMemory returns a memory backend and registers its metrics.
func newMemory(s *settings.Settings, r *stats.Registry) *memory.Backend {
	b := memory.New(memory.Config{MaxKeys: s.Backend.MemoryMaxKeys})
	r.Source(func(v *stats.Values) {
		now := b.Stats()
		v.Gauge(stats.MemoryKeys, float64(now.Keys))
		v.Counter(stats.MemoryForcedOutTotal, now.ForcedOut)
	})
	return b
}

const inMemory = "in-memory counters"

// openMemory returns the store for BACKEND_TYPE=memory.
func openMemory(s *settings.Settings, _ *slog.Logger, r *stats.Registry, _ *health.Tracker, t *tracing.Tracer) (*store, error) {
	local := newMemory(s, r)
	return &store{
		Backend:          t.Backend(local, tracing.Store{Span: "Memory Execution", Length: "operations length"}),
		Store:            storehealth.Local(),
		local:            local,
		what:             "memory: counters are kept in this process only, and are lost when it ends",
		unsharedCounters: inMemory, unshared: inMemory,
	}, nil
}

// beyondFixedWindow names a feature of a rule that the reference's counters do not support, or returns "".
func beyondFixedWindow(r *descriptors.Rule) string {
	limits := r.RateLimits.Limits()
	if len(limits) > 1 {
		return "a list of rate_limits"
	}
	if r.Penalty != nil {
		return "a penalty"
	}
	if r.Reserve != nil {
		return "reserve"
	}
	if r.RLQS != nil {
		return "rlqs"
	}
	for i := range limits {
		if what := limits[i].BeyondCount(); what != "" {
			return what
		}
	}
	return ""
}

// defaultOnFailure returns DEFAULT_ON_FAILURE. The settings have validated it.
func defaultOnFailure(s *settings.Settings) descriptors.OnFailure {
	f, _ := descriptors.ParseOnFailure(strings.ToLower(s.Backend.OnFailure))
	return f
}

// failsWithout reports whether DEFAULT_ON_FAILURE fails requests while the backend is unavailable.
func failsWithout(s *settings.Settings) bool {
	return strings.EqualFold(cmp.Or(s.Backend.OnFailure, "error"), "error")
}

// secretKeys returns the keys derived from CACHE_KEY_SECRET_FILE, or nil if it is not set.
func secretKeys(s *settings.Settings) (*secret.Keys, error) {
	if s.Backend.KeySecretFile == "" {
		return nil, nil //nolint:nilnil // the secret is optional
	}
	keys, err := secret.Read(s.Backend.KeySecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading CACHE_KEY_SECRET_FILE: %w", err)
	}
	return keys, nil
}

// CounterSecret returns the secret for counter names, or nil if names are plain hashes.
func CounterSecret(s *settings.Settings) (*descriptors.Secret, error) {
	keys, err := secretKeys(s)
	return keys.CounterNames(), err
}
