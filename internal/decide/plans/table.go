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

// Shards is how many parts a table has. Each has a lock, which is held for one tenant at a time.
const Shards = 256

// Most is how many names of plans a table knows. Tenants on further plans are on one without a name, which no rule has.
const Most = 4096

// Table is the tenants of one source. Any number of goroutines may look tenants up while one changes them.
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

// record is the entry of a tenant in 32 bytes, since there may be millions.
type record struct {
	plan     *plan
	until    int64 // in seconds since the epoch; 0 if there is no end
	made     int64 // as the store has it; 0 if it is of a file
	requests uint32
	numbered bool
}

// plan is the name of a plan, and how many tenants are on it.
type plan struct {
	name    string
	tenants atomic.Int64
}

// NewTable returns a table without tenants. A table that replaces another one in the middle of a [Table.List] needs the same seed.
func NewTable(seed maphash.Seed) *Table {
	t := &Table{seed: seed, plans: map[string]*plan{"": new(plan)}}
	for i := range t.shards {
		t.shards[i].tenants = map[string]record{}
	}
	return t
}

// entry returns the record as an entry.
func (r *record) entry() Entry {
	e := Entry{Plan: r.plan.name, Requests: r.requests, Numbered: r.numbered}
	if r.until != 0 {
		e.Until = time.Unix(r.until, 0)
	}
	return e
}

// Find returns the entry of a tenant. A nil table has none. It does not allocate.
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

// Made returns the entry of a tenant, and when the store's entry was made.
func (t *Table) Made(name string) (e Entry, made int64, ok bool) {
	s := t.of(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok := s.tenants[name]
	if !ok {
		return e, 0, false
	}
	return r.entry(), r.made, true
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

func (t *Table) of(name string) *shard { return &t.shards[maphash.String(t.seed, name)%Shards] }

// Set sets the entry of a tenant, and reports whether there was one before.
func (t *Table) Set(name string, e *Entry, made int64) (had bool) {
	r := record{plan: t.plan(e.Plan), made: made, requests: e.Requests, numbered: e.Numbered}
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

// plan returns the plan with a name.
func (t *Table) plan(name string) *plan {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.plans[name]
	switch {
	case p != nil:
	case len(t.plans) == Most:
		p = t.plans[""]
	default:
		p = &plan{name: name}
		t.plans[name] = p
	}
	return p
}

// Unset removes a tenant, and reports whether it was there.
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

// Len returns how many tenants there are.
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

// Count is how many tenants are on a plan.
type Count struct {
	Plan    string
	Tenants int
}

// Counts returns how many tenants are on each plan, sorted by its name.
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

// Listed is a tenant, and the hash of its name.
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
