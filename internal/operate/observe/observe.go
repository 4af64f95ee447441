// Package observe shows decisions to operators: the busiest and the most rejected descriptors of the last minute and of the last hour
// ([Observer.Top]), and decisions while they are made ([Observer.Watch]). Tasks log which rules reject ([LogRejections]), which calls show a
// probable mistake ([LogMistakes]), and overload ([LogShedding]).
//
// Decisions do not wait for operators. One that is neither sampled nor watched costs a subtraction and an atomic load.
//
// Top counts a sample. As long as there are at most about 1,000 descriptors in a second, it counts all; above that, it draws each hit
// with the same probability, and multiplies what it draws. It counts in sub-windows: the last minute is the sub-window of ten seconds
// that runs and the six before it, so 60 to 70 s; the last hour likewise has sub-windows of ten minutes, which take what those of ten
// seconds have counted when these are over. All of it takes at most 10 MB. A sub-window that runs out of memory drops half of its
// descriptors, and keeps those with the most hits, those with the most rejections and the first ones of each rule. Each number
// therefore comes with its error, which includes both: with a probability of 99.7 % the truth is no further away.
//
// Watch copies each decision that meets a watcher's filter to that watcher. A watcher that is too slow loses decisions, and learns
// how many.
//
// This package is optional: the core works without it.
package observe

import (
	"bytes"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Observer implements [limiter.Observer]. It is safe for concurrent use.
type Observer struct {
	caller func(context.Context) string
	start  time.Time
	seed   maphash.Seed
	every  atomic.Uint32 // one in so many hits is sampled

	mu    sync.Mutex // of what follows
	pace  pace
	rings [windows]ring // the hour's lacks the sub-window of the minute that runs

	watching sync.Mutex // of changes of watchers
	watchers atomic.Pointer[[]*Watcher]
}

// New returns an Observer that has seen nothing. It asks caller for the client that sent a request.
func New(caller func(context.Context) string) *Observer {
	o := &Observer{caller: caller, start: time.Now(), seed: maphash.MakeSeed()}
	o.every.Store(1)
	o.watchers.Store(new([]*Watcher))
	return o
}

// Wants implements [limiter.Observer].
func (o *Observer) Wants(s *limiter.Sample) bool {
	s.Drawn = !passes(s)
	return s.Drawn || len(*o.watchers.Load()) > 0
}

// Observe implements [limiter.Observer].
func (o *Observer) Observe(ctx context.Context, s *limiter.Sample, decisions []limiter.Decision) {
	if s.Drawn {
		o.sample(s, decisions)
	}
	for _, w := range *o.watchers.Load() {
		for i := range decisions {
			w.offer(&decisions[i], func() string { return o.caller(ctx) })
		}
	}
}

// Divided counts, for Top, decisions that clients made by themselves on a descriptor that matched a rule.
func (o *Observer) Divided(domain, rule string, entries []descriptors.Entry, allowed, denied uint64) {
	d := limiter.Decision{Domain: []byte(domain), Entries: entries, Facts: limiter.Facts{Rule: rule}}
	o.add(&d, sums{float64(allowed + denied), float64(denied)}, 1)
}

// Subject is the descriptor of a decision, cut if it is too long.
type Subject struct {
	Domain  []byte
	Entries []descriptors.Entry
	Cut     bool
}

// subjectOf copies the descriptor of d, at most room bytes of it.
func subjectOf(d *limiter.Decision, room int) (s Subject) {
	part := func(b []byte) []byte {
		if len(b) > room {
			b, s.Cut = b[:room], true
		}
		room -= len(b)
		return bytes.Clone(b)
	}
	s.Domain = part(d.Domain)
	for _, e := range d.Entries {
		if room == 0 {
			s.Cut = true
			break
		}
		s.Entries = append(s.Entries, descriptors.Entry{Key: part(e.Key), Value: part(e.Value)})
	}
	return s
}

// Filter selects descriptors; the zero value selects all.
type Filter struct {
	Domain, Rule string        // if not empty
	Domains      []string      // one of these; nil stands for all
	Entries      []EntryFilter // the descriptor must have all of them
}

// EntryFilter is an entry that a descriptor must have.
type EntryFilter struct {
	Key, Value string
	AnyValue   bool
}

func (f *Filter) sees(domain []byte) bool {
	return (f.Domain == "" || f.Domain == string(domain)) && (f.Domains == nil || slices.Contains(f.Domains, string(domain)))
}

func (f *Filter) meets(rule string, entries []descriptors.Entry) bool {
	return (f.Rule == "" || f.Rule == rule) && !slices.ContainsFunc(f.Entries, func(want EntryFilter) bool {
		return !slices.ContainsFunc(entries, func(e descriptors.Entry) bool {
			return want.Key == string(e.Key) && (want.AnyValue || want.Value == string(e.Value))
		})
	})
}
