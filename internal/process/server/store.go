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

// store is where counters live.
type store struct {
	backend.Backend
	*storehealth.Store                                 // whether it can be asked
	waits              func() map[string]time.Duration // how long operations wait, by node; nil if there are no nodes

	// operators has the same counters, for what operators ask; nil if that is no different.
	operators backend.Backend
	local     *memory.Backend    // for on_failure: local; the store itself if counters live in memory
	near      *nearcache.Backend // nil if there is none
	tasks     []task.Task        // keep the store going; the last one stops first
	name      string             // of what holds the counters, for people; empty if that is this process
	what      string             // where counters are, as a sentence for people
	keys      *secret.Keys       // of CACHE_KEY_SECRET_FILE; nil without it
	audit     audit.Store        // where replicas share the audit; nil if there is no such place
	alone     string             // why counters are those of this process alone; empty if replicas share them

	prepaid *prepaid // watches where prepaid budgets are kept; nil if there can be none

	controls replicated.Store // where replicas share controls; nil likewise
	unshared string           // why they share no controls; empty if they do
	tenants  replicated.Store // where replicas share the table of tenants; nil if they do not
	rows     rlqs.Rows        // where replicas agree on their parts of divided limits; nil if there is no such place

	reservationKey func(ctx context.Context, offered []byte) ([]byte, error) // that replicas share; nil if there is no such place

	referenceNames bool // it keeps counters under envoyproxy/ratelimit's names
}

// Close implements [backend.Backend].
func (v *store) Close() error {
	var err error
	if v.operators != nil {
		err = v.operators.Close()
	}
	return errors.Join(err, v.Backend.Close())
}

// backendType is what is known of a value of BACKEND_TYPE.
type backendType struct {
	// open returns the store. What it needs of the process comes as in newStore.
	open func(*settings.Settings, *slog.Logger, *stats.Registry, *health.Tracker, *tracing.Tracer) (*store, error)

	// simple says of what is more than one fixed window that the store does not support it; empty if it does.
	simple string
	// lasting says whether counters stay until an operator resets them.
	lasting bool
	// leases says whether hits may be leased from the store by a near cache before it.
	leases bool
	// timeout is how long a call may take; 0 means for as long as the caller waits.
	timeout time.Duration
	// key returns the name of a counter.
	key func(*settings.Settings, *backend.Op, engine.Micros) string
}

// backendTypes has a row for each value of BACKEND_TYPE, by other settings. All else about a store is in the file of what its row names.
func backendTypes(s *settings.Settings) map[string]backendType {
	redis := backendType{open: openRedis, lasting: true, leases: true, timeout: redisTimeout(s), key: redisKey}
	if s.Redis.KeyFormat != "" { // whose servers would take leased hits for spent ones
		redis.simple, redis.leases = inReference, false
	}
	return map[string]backendType{
		"memory":   {open: openMemory, key: redisKey}, // there is no name in memory; that in Redis can be compared
		"redis":    redis,
		"memcache": {open: openMemcached, simple: inMemcached, timeout: s.Memcache.OpTimeout, key: memcachedKey}, // which takes no hits back
	}
}

// newStore returns the store that BACKEND_TYPE asks for.
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
		v.controls = texts.Register(secret.Same(v.controls, v.keys, log, h))
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

// Unsupported returns a function that finds what the store of these settings does not support in rules.
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
			if r.Forever() && !row.lasting { // before the count of rejected hits, for example
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

// CounterKey returns the name at now of the counter that op asks for, in the store of these settings. Where counters are
// in memory it is that which Redis would have.
func CounterKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	return backendTypes(s)[s.Backend.Type].key(s, op, now)
}

// newMemory returns counters in this process.
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
		Backend: t.Backend(local, tracing.Store{Span: "Memory Execution", Length: "operations length"}),
		Store:   storehealth.Local(),
		local:   local,
		what:    "memory: counters are kept in this process only, and are lost when it ends",
		alone:   inMemory, unshared: inMemory,
	}, nil
}

// beyondFixedWindow names what a rule asks for that the reference's counters do not support, or returns "".
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

// defaultOnFailure returns DEFAULT_ON_FAILURE, which the settings have checked.
func defaultOnFailure(s *settings.Settings) descriptors.OnFailure {
	f, _ := descriptors.ParseOnFailure(strings.ToLower(s.Backend.OnFailure))
	return f
}

// failsWithout reports whether requests fail by DEFAULT_ON_FAILURE while the store cannot be asked.
func failsWithout(s *settings.Settings) bool {
	return strings.EqualFold(cmp.Or(s.Backend.OnFailure, "error"), "error")
}

// secretKeys returns what is made of CACHE_KEY_SECRET_FILE; nil if it is not set.
func secretKeys(s *settings.Settings) (*secret.Keys, error) {
	if s.Backend.KeySecretFile == "" {
		return nil, nil //nolint:nilnil // no secret is a setting too
	}
	keys, err := secret.Read(s.Backend.KeySecretFile)
	if err != nil {
		return nil, fmt.Errorf("reading CACHE_KEY_SECRET_FILE: %w", err)
	}
	return keys, nil
}

// CounterSecret returns what makes the names of counters with these settings; nil if they are plain hashes.
func CounterSecret(s *settings.Settings) (*descriptors.Secret, error) {
	keys, err := secretKeys(s)
	return keys.CounterNames(), err
}
