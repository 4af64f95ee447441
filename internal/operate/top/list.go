package top

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Sizes of what a list keeps, in bytes, as a [budget] counts them.
const (
	listBytes  = 1024
	countBytes = 32
	keyBytes   = 128 // and its text
)

// maxEntries is how many keys a summary has room for.
const maxEntries = 1000

// budget bounds the memory of lists. The more of it is used, the less room has each summary, so that there is some for
// the summaries and lists that are still to come.
type budget struct {
	limit int64
	used  atomic.Int64
}

// room returns how many keys a summary may have now; 0 means that it must not grow.
func (b *budget) room() int {
	switch used := b.used.Load(); {
	case used < b.limit/2:
		return maxEntries
	case used < b.limit/4*3:
		return 250
	case used < b.limit/10*9:
		return 64
	case used < b.limit:
		return leastEntries
	default:
		return 0
	}
}

// leastEntries is how many keys a summary has room for at least, once its sub-window is over.
const leastEntries = 16

// list is the busiest and the most rejected descriptors of one rule, or of all, in the last minute and in the last hour.
type list struct {
	mu      sync.Mutex
	budget  *budget
	at      int64 // number of the sub-window that runs
	gone    bool  // nothing may be added any more
	keys    map[uint64]*key
	most    int // keys since the map was made, which never shrinks
	ranking [rankings]ranked
}

// ranked is one ranking of a list.
type ranked struct {
	running summary   // the sub-window that runs
	minute  []summary // those before it, the oldest first
	current summary   // what is over of the sub-window of the hour that runs
	hour    []summary // those before it, the oldest first
}

func newList(b *budget, at int64) *list {
	b.used.Add(listBytes)
	return &list{budget: b, at: at, keys: make(map[uint64]*key)}
}

// sample is one descriptor of a request that was sampled. Hits are multiplied so that they stand for those that were not.
type sample struct {
	hash   uint64
	rule   string
	text   [maxText]byte // of which length are used
	length int
	cut    bool
	hits   [rankings]float64
	every  uint32
}

// add counts s in sub-window number at.
func (l *list) add(s *sample, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone {
		return
	}
	l.advance(at)
	room := l.budget.room()
	for r := range l.ranking {
		if s.hits[r] == 0 {
			continue
		}
		running := &l.ranking[r].running
		k, before := l.key(s), len(running.counts)
		dropped := running.add(k, s.hits[r], Ranking(r), room)
		running.every = max(running.every, s.every)
		l.budget.used.Add(countBytes * int64(len(running.counts)-before))
		if dropped != nil {
			l.forget(dropped)
		}
		l.forget(k) // if there was no room for it
	}
}

// key returns the key of s, which is new if it has none.
func (l *list) key(s *sample) *key {
	k := l.keys[s.hash]
	if k == nil {
		k = &key{hash: s.hash, rule: s.rule, text: string(s.text[:s.length]), cut: s.cut}
		l.keys[s.hash] = k
		l.most = max(l.most, len(l.keys))
		l.budget.used.Add(keyBytes + int64(len(k.text)))
	}
	return k
}

// forget drops k unless a summary has it.
func (l *list) forget(k *key) {
	if k.refs == 0 && l.keys[k.hash] == k {
		delete(l.keys, k.hash)
		l.budget.used.Add(-keyBytes - int64(len(k.text)))
	}
}

// advance makes at the sub-window that runs, and drops what is older than an hour.
func (l *list) advance(at int64) {
	if at <= l.at {
		return
	}
	room := max(l.budget.room(), leastEntries)
	for r := range l.ranking {
		l.ranking[r].advance(l, Ranking(r), at, room)
	}
	l.at = at
	if l.most > 4*len(l.keys)+64 {
		smaller := make(map[uint64]*key, len(l.keys))
		maps.Copy(smaller, l.keys)
		l.keys, l.most = smaller, len(smaller)
	}
}

func (d *ranked) advance(l *list, r Ranking, at int64, room int) {
	if d.running.total > 0 {
		done := d.running.take(l.at, r)
		l.resize(&done, func() { done.prune(room, l.forget) })
		l.resize(&d.current, func() {
			d.current.merge(&done, r)
			d.current.prune(room, l.forget)
		})
		d.minute = append(d.minute, done)
	}
	if l.at/perHour != at/perHour && d.current.total > 0 {
		d.current.number = l.at / perHour
		d.hour = append(d.hour, d.current)
		d.current = summary{}
	}
	d.minute = l.dropOld(d.minute, at-subWindows)
	d.hour = l.dropOld(d.hour, at/perHour-subWindows)
}

// dropOld drops the summaries of sub-windows before number oldest.
func (l *list) dropOld(all []summary, oldest int64) []summary {
	n := 0
	for n < len(all) && all[n].number < oldest {
		l.budget.used.Add(-countBytes * int64(len(all[n].counts)))
		for _, c := range all[n].counts { // which another goroutine may be reading
			c.key.refs--
			l.forget(c.key)
		}
		n++
	}
	kept := copy(all, all[n:])
	clear(all[kept:])
	return all[:kept]
}

// resize has the budget follow what f does to s.
func (l *list) resize(s *summary, f func()) {
	before := len(s.counts)
	f()
	l.budget.used.Add(countBytes * int64(len(s.counts)-before))
}

// catchUp advances the list.
func (l *list) catchUp(at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(at)
}

// endedBy advances the list, and reports whether there is nothing left of the last hour. Then the list is of no more use.
func (l *list) endedBy(at int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(at)
	for r := range l.ranking {
		d := &l.ranking[r]
		if d.running.total > 0 || d.current.total > 0 || len(d.minute) > 0 || len(d.hour) > 0 {
			return false
		}
	}
	l.gone = true
	l.budget.used.Add(-listBytes)
	return true
}

// summaries returns copies of all that a window consists of.
func (l *list) summaries(at int64, r Ranking, w Window) []summary {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(at)
	d := &l.ranking[r]
	parts := append([]summary(nil), d.minute...)
	if w == Hour {
		parts = append(append([]summary(nil), d.hour...), copyOf(&d.current))
	}
	return append(parts, copyOf(&d.running))
}

// totals returns how many hits of all its descriptors a list has counted in a window.
func (l *list) totals(at int64, w Window) (sum [rankings]float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(at)
	for r := range l.ranking {
		d := &l.ranking[r]
		parts := d.minute
		if w == Hour {
			parts = d.hour
			sum[r] = d.current.total
		}
		sum[r] += d.running.total
		for i := range parts {
			sum[r] += parts[i].total
		}
	}
	return sum
}

// copyOf returns a copy of a summary that is still worked on. Those that are over never change, but for being dropped.
func copyOf(s *summary) summary {
	c := *s
	c.counts = append([]count(nil), s.counts...)
	return c
}
