package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
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
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// store is where counters live.
type store struct {
	backend.Backend
	link
	// operators has the same counters, for what operators ask; nil if that is no different.
	operators backend.Backend
	local     *memory.Backend     // for on_failure: local; the store itself if counters live in memory
	near      *nearcache.Backend  // nil if there is none
	tasks     []task.Task         // keep the store going; the last one stops first
	name      string              // of what holds the counters, for people; empty if that is this process
	what      string              // where counters are, as a sentence for people
	secret    *descriptors.Secret // of the names of counters; nil if they are plain hashes
	audit     audit.Store         // where replicas share the audit; nil if there is no such place
	alone     string              // why counters are those of this process alone; empty if replicas share them

	prepaid *prepaid // watches where prepaid budgets are kept; nil if there can be none

	controls replicated.Store // where replicas share controls; nil likewise
	unshared string           // why they share no controls; empty if they do
	tenants  replicated.Store // where replicas share the table of tenants; nil if they do not
	rows     rlqs.Rows        // where replicas agree on their parts of divided limits; nil if there is no such place

	reservationKeys [][]byte                                                  // made of CACHE_KEY_SECRET_FILE; nil without it
	reservationKey  func(ctx context.Context, offered []byte) ([]byte, error) // that replicas share; nil if there is no such place

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

// link is what is known of the way to a store.
type link interface {
	Tried() <-chan struct{}      // closed once a connection is up, or has failed
	Away() string                // why there is no connection, or empty
	NotReady() string            // why nothing can be decided now, or empty
	Connections() int            // that are up
	Nodes() []*adminv1.StoreNode // the servers of the store, by name
}

// noLink is the link to counters in this process: they are always there.
type noLink struct{}

func (noLink) Away() string                { return "" }
func (noLink) NotReady() string            { return "" }
func (noLink) Connections() int            { return 0 }
func (noLink) Nodes() []*adminv1.StoreNode { return nil }
func (noLink) Tried() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

// network is the link to a store behind a network.
type network struct {
	*storehealth.Store
	observer *storeObserver
	waits    func() map[string]time.Duration // how long operations wait, by node
}

// Nodes implements [link].
func (n network) Nodes() (all []*adminv1.StoreNode) {
	waits := n.waits()
	n.observer.nodes.Range(func(key, state any) bool {
		name, s := key.(string), state.(*nodeState)
		if s.breaker() != health.Gone {
			breaker := adminv1.Breaker(s.breaker() + 1) // both are in one order, but only that has an unset one
			all = append(all, &adminv1.StoreNode{Name: name, Breaker: breaker, Opened: s.opened.Load(), Wait: admin.Duration(waits[name])})
		}
		return true
	})
	slices.SortFunc(all, func(a, b *adminv1.StoreNode) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

// backendType is what is known of a value of BACKEND_TYPE.
type backendType struct {
	// open returns the store. What it needs of the process comes as in newStore.
	open func(*settings.Settings, *slog.Logger, *stats.Registry, *health.Tracker, *tracing.Tracer) (*store, error)

	// simple says of what is more than one fixed window that the store does not support it; empty if it does.
	simple func(*settings.Settings) string
	// lasting says whether counters stay until an operator resets them.
	lasting bool
	// near says whether hits may be leased from the store, and how long a call may take, where 0 means for as long as the
	// caller waits. Nil if there is no near cache before it.
	near func(*settings.Settings) (leases bool, timeout time.Duration)
	// key returns the name of a counter.
	key func(*settings.Settings, *backend.Op, engine.Micros) string
}

// backendTypes has a row for each value of BACKEND_TYPE. All else about a store is in the file of what its row names.
func backendTypes() map[string]backendType {
	return map[string]backendType{
		"memory":   {open: openMemory, simple: memorySimple, key: redisKey}, // there is no name in memory; that in Redis can be compared
		"redis":    {open: openRedis, lasting: true, simple: redisSimple, near: redisNear, key: redisKey},
		"memcache": {open: openMemcached, simple: memcachedSimple, near: memcachedNear, key: memcachedKey},
	}
}

// newStore returns the store that BACKEND_TYPE asks for.
func newStore(s *settings.Settings, log *slog.Logger, r *stats.Registry, h *health.Tracker, t *tracing.Tracer) (*store, error) {
	v, err := backendTypes()[s.Backend.Type].open(s, log, r, h, t)
	if err != nil {
		return nil, err
	}
	if v.local == nil {
		v.local = newMemory(s, r)
	}
	keys, err := secretKeys(s)
	if err != nil {
		return nil, err
	}
	v.secret = counterSecret(keys)
	if keys != nil {
		v.reservationKeys = keys.Reservations
	}
	seal := newSeal(keys, log)
	if v.controls != nil {
		v.controls = sealedRegister{newSameSecret(v.controls, keys, log, h), seal}
		v.audit = sealedAudit{v.audit, seal}
	}
	if v.tenants != nil {
		v.tenants = sealedRegister{v.tenants, seal}
	}
	return v, nil
}

func memorySimple(*settings.Settings) string { return "" }

// Unsupported returns a function that finds what the store of these settings does not support in rules.
func Unsupported(s *settings.Settings) func(*descriptors.Set) descriptors.Problems {
	row := backendTypes()[s.Backend.Type]
	simple := row.simple(s)
	if simple == "" && row.lasting {
		return configwatch.Quiet().Check
	}
	return func(set *descriptors.Set) (all descriptors.Problems) {
		for r := range set.Rules() {
			what := ""
			if simple != "" {
				what = beyondFixedWindow(r)
			}
			if r.Forever() && !row.lasting { // before the count of rejected hits, for example
				what = engine.UnitForever
			}
			if what != "" {
				text := what + cmp.Or(simple, " cannot be counted in memory, which a restart empties; use BACKEND_TYPE=redis, or remove this")
				all = append(all, descriptors.Problem{File: r.File, Line: r.Line, Domain: r.DomainName(), Path: r.Path, Text: text})
			}
		}
		return all
	}
}

// CounterKey returns the name at now of the counter that op asks for, in the store of these settings. Where counters are
// in memory it is that which Redis would have.
func CounterKey(s *settings.Settings, op *backend.Op, now engine.Micros) string {
	return backendTypes()[s.Backend.Type].key(s, op, now)
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
		Backend: tracedStore(t, local, tracing.Store{Span: "Memory Execution", Length: "operations length"}),
		link:    noLink{},
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
