package tenants

import (
	"cmp"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shards is how many parts a table has. Each has a lock, which is held for one tenant at a time.
const shards = 256

// maxPlans is how many names of plans a table knows. Tenants on further plans are on one without a name, which no rule has.
const maxPlans = 4096

// table is the tenants of one source. Any number of goroutines may look tenants up while one changes them.
type table struct {
	seed   maphash.Seed
	shards [shards]shard

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

func newTable(seed maphash.Seed) *table {
	t := &table{seed: seed, plans: map[string]*plan{"": new(plan)}}
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

// find returns the entry of a tenant. A nil table has none. It does not allocate.
func (t *table) find(name []byte) (e Entry, ok bool) {
	if t == nil {
		return e, false
	}
	s := &t.shards[maphash.Bytes(t.seed, name)%shards]
	s.mu.RLock()
	r, ok := s.tenants[string(name)]
	s.mu.RUnlock()
	if !ok {
		return e, false
	}
	return r.entry(), true
}

// get returns the record of a tenant.
func (t *table) get(name string) (r record, ok bool) {
	s := t.of(name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	r, ok = s.tenants[name]
	return r, ok
}

func (t *table) of(name string) *shard { return &t.shards[maphash.String(t.seed, name)%shards] }

// set sets the entry of a tenant, and reports whether there was one before.
func (t *table) set(name string, e *Entry, made int64) (had bool) {
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
func (t *table) plan(name string) *plan {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.plans[name]
	switch {
	case p != nil:
	case len(t.plans) == maxPlans:
		p = t.plans[""]
	default:
		p = &plan{name: name}
		t.plans[name] = p
	}
	return p
}

// unset removes a tenant, and reports whether it was there.
func (t *table) unset(name string) bool {
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

// len returns how many tenants there are.
func (t *table) len() (n int) {
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

// count is how many tenants are on a plan.
type count struct {
	plan    string
	tenants int
}

// counts returns how many tenants are on each plan, sorted by its name.
func (t *table) counts() (all []count) {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.plans {
		all = append(all, count{name, int(p.tenants.Load())})
	}
	slices.SortFunc(all, func(a, b count) int { return cmp.Compare(a.plan, b.plan) })
	return all
}

// listed is a tenant, and the hash of its name.
type listed struct {
	hash uint64
	name string
	Entry
}

// list returns the tenants of a shard, sorted by the hashes of their names.
func (t *table) list(shard int) (all []listed) {
	if t == nil {
		return nil
	}
	s := &t.shards[shard]
	s.mu.RLock()
	for name, r := range s.tenants {
		all = append(all, listed{maphash.String(t.seed, name), name, r.entry()})
	}
	s.mu.RUnlock()
	slices.SortFunc(all, func(a, b listed) int { return cmp.Compare(a.hash, b.hash) })
	return all
}
