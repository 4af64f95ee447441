// Package top knows the busiest and the most rejected descriptors of the last minute and of the last hour, of each rule and
// of all rules together, in a memory of 10 MB, whatever is asked for.
//
// Two things make it cheap, and both make it an estimate. Of the hits of a busy server only some are looked at, each with
// the same probability ([Passes]); and of those only the keys with the most are kept, by Space-Saving sketches, which start
// again every ten seconds, and are merged to answer ([summary] has their bound). Each number of an answer therefore comes with
// how far it may be off, which includes both.
//
// The last minute is the sub-window of ten seconds that runs and the six before it, so 60 to 70 s; the last hour
// is the sub-window of ten minutes that runs and the six before it, so 60 to 70 minutes. Answers say from when on they count.
//
// This package is optional: the core works without it.
package top

import (
	"context"
	"encoding/binary"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Ranking is what descriptors are ranked by.
type Ranking uint8

// The rankings.
const (
	Busiest  Ranking = iota // hits asked for
	Rejected                // how often they were rejected
	rankings
)

// Window is which time an answer is about.
type Window uint8

// The windows.
const (
	Minute Window = iota
	Hour
)

const (
	subWindow  = 10 * time.Second
	subWindows = 6 // complete ones in a window
	perHour    = 60
)

// Bounds on memory, in bytes: of the list of all rules, of the lists of all rules there are, and of the text of a descriptor.
const (
	overallBytes = 3 << 20
	rulesBytes   = 5 << 20
	maxText      = 192
)

// wanted is how many descriptors are looked at in a second. As long as there are not more, all are.
const wanted = 1000

// maxEvery is the most hits of which one is looked at.
const maxEvery = 1 << 16

// Top counts. It is safe for concurrent use.
type Top struct {
	start time.Time
	seed  maphash.Seed
	every atomic.Uint32 // of so many hits one is looked at

	pace struct {
		sync.Mutex
		since time.Time
		drawn int
	}

	overall *list
	room    budget // of the lists of rules
	mu      sync.RWMutex
	rules   map[ruleID]*list
	crowded atomic.Int64 // the sub-window in which a rule last found no room for a list, plus 1
}

// ruleID names a rule: domains with dots in their names may have rules with one path.
type ruleID struct{ domain, path string }

// New returns a Top that has seen nothing.
func New() *Top {
	t := &Top{
		start:   time.Now(),
		seed:    maphash.MakeSeed(),
		overall: newList(&budget{limit: overallBytes}, 0),
		room:    budget{limit: rulesBytes},
		rules:   make(map[ruleID]*list),
	}
	t.every.Store(1)
	return t
}

// Passes reports whether a request is not looked at. It is all that most requests cost; if it reports false, [Top.Draw] decides. Each
// hit is drawn with the same probability, and a request is looked at if one of its hits is, so that a request for many hits is not
// overlooked.
func Passes(s *limiter.Sample) bool {
	if s.Hits >= s.Skip {
		return false
	}
	s.Skip -= s.Hits
	return true
}

// Draw decides about a request that Passes did not skip, and that is so many descriptors wide. What is drawn must be multiplied by
// weight, and stands for one in every hits; if weight is 0 the request is not looked at after all.
func (t *Top) Draw(s *limiter.Sample, wide int) (weight float64, every uint32) {
	if s.Every == 0 {
		if draw(s, t.every.Load()); Passes(s) {
			return 0, 0
		}
	}
	every, weight = s.Every, 1
	if every > 1 {
		weight = -1 / math.Expm1(float64(s.Hits)*math.Log1p(-1/float64(every)))
	}
	draw(s, t.paced(wide))
	return weight, every
}

// draw draws how many hits come before the next one that is looked at, and that one.
func draw(s *limiter.Sample, every uint32) {
	s.Skip, s.Every = 1, every
	if every > 1 {
		s.Skip += uint64(math.Log1p(-rand.Float64()) / math.Log1p(-1/float64(every)))
	}
}

// paced notes that n descriptors are looked at, and returns of how many hits one is to be looked at from now on.
func (t *Top) paced(n int) uint32 {
	now := time.Now()
	t.pace.Lock()
	defer t.pace.Unlock()
	t.pace.drawn += n
	every := float64(t.every.Load())
	switch since := now.Sub(t.pace.since); {
	case since >= time.Second:
		every = math.Ceil(every * float64(t.pace.drawn) / since.Seconds() / wanted)
	case t.pace.drawn > 2*wanted:
		every *= 2
	default:
		return uint32(every)
	}
	t.pace.since, t.pace.drawn = now, 0
	every = min(max(every, 1), maxEvery)
	t.every.Store(uint32(every))
	return uint32(every)
}

// Decision is what became of a descriptor of a request that is looked at.
type Decision struct {
	Domain   []byte
	Rule     string // path of the rule that it met; empty if it met none
	Entries  []descriptors.Entry
	Hits     uint64 // asked for
	Rejected uint64 // 1 if its request was rejected for it
	Denied   bool   // by a control, so that it is no rejection of the rule
}

// Add counts d, which stands for weight as many, as Draw returned it.
func (t *Top) Add(d *Decision, weight float64, every uint32) {
	s := sample{rule: d.Rule, hash: t.hash(d), every: every}
	s.pack(d)
	s.hits = [rankings]float64{float64(d.Hits) * weight, float64(d.Rejected) * weight}
	at := t.number(time.Now())
	t.overall.add(&s, at)
	if d.Rule == "" {
		return
	}
	if d.Denied {
		s.hits[Rejected] = 0
	}
	if l := t.list(d, at); l != nil {
		l.add(&s, at)
	}
}

// number returns the number of the sub-window of a time.
func (t *Top) number(now time.Time) int64 { return int64(now.Sub(t.start) / subWindow) }

// list returns the list of the rule that d met, or nil if there is no room for one.
func (t *Top) list(d *Decision, at int64) *list {
	t.mu.RLock()
	l := t.rules[ruleID{string(d.Domain), d.Rule}]
	t.mu.RUnlock()
	if l != nil || t.crowded.Load() == at+1 {
		return l
	}
	id := ruleID{string(d.Domain), d.Rule}
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.rules[id]; l != nil {
		return l
	}
	if t.room.room() == 0 { // until the next sub-window, when it is looked for again
		t.crowded.Store(at + 1)
		return nil
	}
	l = newList(&t.room, at)
	t.rules[id] = l
	return l
}

// String says what Run does.
func (t *Top) String() string { return "top" }

// Run begins a new sub-window in all lists when it is time, and drops what is over, until ctx ends. Without it that would be
// left to the requests that come next, and what belongs to rules that are no longer met would stay.
func (t *Top) Run(ctx context.Context) error {
	tick := time.NewTicker(subWindow)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			t.sweep(t.number(now))
		}
	}
}

func (t *Top) sweep(at int64) {
	t.overall.catchUp(at)
	t.mu.RLock()
	ids := slices.Collect(maps.Keys(t.rules))
	t.mu.RUnlock()
	for _, id := range ids {
		t.mu.Lock()
		if t.rules[id].endedBy(at) {
			delete(t.rules, id)
		}
		t.mu.Unlock()
	}
}

// hash returns a number that stands for d's rule and descriptor. A client cannot choose descriptors that have the same one.
func (t *Top) hash(d *Decision) uint64 {
	var h maphash.Hash
	h.SetSeed(t.seed)
	var size [binary.MaxVarintLen64]byte
	write := func(b []byte) {
		_, _ = h.Write(size[:binary.PutUvarint(size[:], uint64(len(b)))]) // a hash takes everything
		_, _ = h.Write(b)
	}
	_, _ = h.WriteString(d.Rule)
	write(d.Domain)
	for i := range d.Entries {
		write(d.Entries[i].Key)
		write(d.Entries[i].Value)
	}
	return h.Sum64()
}

// pack writes d's domain, keys and values into s, each after its length, as far as there is room.
func (s *sample) pack(d *Decision) {
	s.write(d.Domain)
	for i := range d.Entries {
		s.write(d.Entries[i].Key)
		s.write(d.Entries[i].Value)
	}
}

func (s *sample) write(part []byte) {
	room := len(s.text) - s.length - 2 // a length takes two bytes at most
	if s.cut = s.cut || room < 0; s.cut {
		return
	}
	if len(part) > room {
		part, s.cut = part[:room], true
	}
	s.length += binary.PutUvarint(s.text[s.length:], uint64(len(part)))
	s.length += copy(s.text[s.length:], part)
}

// unpack returns what pack has packed. What was cut is missing.
func unpack(text string) (parts []string) {
	for text != "" {
		size, n := binary.Uvarint([]byte(text[:min(len(text), binary.MaxVarintLen64)]))
		text = text[n:]
		parts = append(parts, text[:size])
		text = text[size:]
	}
	return parts
}
