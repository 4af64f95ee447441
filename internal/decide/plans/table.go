package plans

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Shards is the number of parts of a table. Each has a lock, which a lookup or change holds for one tenant.
const Shards = 256

// MaxNames is the maximum number of plan names in a table. Tenants on further plans get the empty plan name, which no rule has.
const MaxNames = 4096

// Table holds the tenants of one source. It is safe for concurrent use.
type Table struct {
	seed   maphash.Seed
	shards [Shards]shard

	mu    sync.Mutex
	plans map[string]*plan // by name
}

// shard is a part of a table.
type shard struct {
	mu      sync.RWMutex
	tenants map[string]record
}

// record is the compact form of an entry, 32 bytes, since there may be millions.
type record struct {
	plan    *plan
	until   int64  // seconds since the epoch; 0 if there is no end
	created int64  // time of the store's entry, as the store reports it; 0 for an entry of a file
	number  uint64 // Requests + 1; 0 if the entry is not Numbered
}

// plan is the name of a plan and the number of its tenants.
type plan struct {
	name    string
	tenants atomic.Int64
}

// NewTable returns an empty table. A table that replaces another one during an iteration with [Table.List] needs the same seed.
func NewTable(seed maphash.Seed) *Table {
	t := &Table{seed: seed, plans: map[string]*plan{"": new(plan)}}
	for i := range t.shards {
		t.shards[i].tenants = map[string]record{}
	}
	return t
}

// entry returns the record as an entry.
func (r *record) entry() Entry {
	e := Entry{Plan: r.plan.name}
	if r.number > 0 {
		e.Requests, e.Numbered = r.number-1, true
	}
	if r.until != 0 {
		e.Until = time.Unix(r.until, 0)
	}
	return e
}

// Find returns a tenant's entry. A nil table has none. It does not allocate.
func (t *Table) Find(name []byte) (e Entry, ok bool) {
	if t == nil {
		return e, false
	}
	s := &t.shards[maphash.Bytes(t.seed, name)%Shards]
	s.mu.RLock()
	r, ok := s.tenants[string(name)]
	s.mu.RUnlock()
	if !ok {
		return e, false
	}
	return r.entry(), true
}

// FindCreated returns a tenant's entry and the creation time of the store's entry.
func (t *Table) FindCreated(name string) (e Entry, made int64, ok bool) {
	s := t.of(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.tenants[name]
	if !ok {
		return e, 0, false
	}
	return r.entry(), r.created, true
}

// Names returns the names of all tenants.
func (t *Table) Names() (names []string) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		names = slices.AppendSeq(names, maps.Keys(s.tenants))
		s.mu.RUnlock()
	}
	return names
}

// of returns the shard of a tenant.
func (t *Table) of(name string) *shard { return &t.shards[maphash.String(t.seed, name)%Shards] }

// Set sets a tenant's entry and reports whether it replaced one.
func (t *Table) Set(name string, e *Entry, made int64) (had bool) {
	r := record{plan: t.plan(e.Plan), created: made}
	if e.Numbered {
		r.number = e.Requests + 1
	}
	if !e.Until.IsZero() {
		r.until = e.Until.Unix()
	}
	s := t.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, had := s.tenants[name]
	if had {
		before.plan.tenants.Add(-1)
	}
	s.tenants[name] = r
	r.plan.tenants.Add(1)
	return had
}

// plan returns the plan called name, creating it if there is room.
func (t *Table) plan(name string) *plan {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.plans[name]
	switch {
	case p != nil:
	case len(t.plans) == MaxNames:
		p = t.plans[""]
	default:
		p = &plan{name: name}
		t.plans[name] = p
	}
	return p
}

// Unset removes a tenant and reports whether it existed.
func (t *Table) Unset(name string) bool {
	s := t.of(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	before, had := s.tenants[name]
	if had {
		before.plan.tenants.Add(-1)
		delete(s.tenants, name)
	}
	return had
}

// Len returns the number of tenants.
func (t *Table) Len() (n int) {
	if t == nil {
		return 0
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		n += len(s.tenants)
		s.mu.RUnlock()
	}
	return n
}

// Count is the number of tenants on a plan.
type Count struct {
	Plan    string
	Tenants int
}

// Counts returns the number of tenants on each plan, sorted by the plans' names.
func (t *Table) Counts() (all []Count) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.plans {
		all = append(all, Count{name, int(p.tenants.Load())})
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Compare(a.Plan, b.Plan) })
	return all
}

// Listed is a tenant and the hash of its name.
type Listed struct {
	Hash uint64
	Name string
	Entry
}

// List returns the tenants of a shard, sorted by the hashes of their names.
func (t *Table) List(shard int) (all []Listed) {
	if t == nil {
		return nil
	}
	s := &t.shards[shard]
	s.mu.RLock()
	for name, r := range s.tenants {
		all = append(all, Listed{maphash.String(t.seed, name), name, r.entry()})
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b Listed) int { return cmp.Compare(a.Hash, b.Hash) })
	return all
}
