// Package observe shows decisions to operators: the busiest and the most rejected descriptors of the last minute and of the last hour
// ([Observer.Top]), and decisions while they are made ([Observer.Watch]). Tasks log which rules reject ([LogRejections]), which calls show a
// probable mistake ([LogMistakes]), and overload ([LogShedding]).
//
// Decisions never wait for operators. A decision that is neither sampled nor watched costs a subtraction and an atomic load.
//
// Top counts a sample. Up to about 1,000 descriptors a second, it counts all hits; beyond that, it draws each hit with the same
// probability and scales the result. It counts in sub-windows of ten seconds. The last minute consists of the current sub-window and
// the six before it, so it covers 60 to 70 s. The last hour likewise has sub-windows of ten minutes, which add up completed
// sub-windows of ten seconds. All sub-windows take at most 10 MB. A sub-window that runs out of memory drops half of its descriptors,
// and keeps those with the most hits, those with the most rejections, and the first ones of each rule. Each number has an error that
// includes both effects: with a probability of 99.7 %, the true number is within the error.
//
// Watch copies each decision that matches a watcher's filter to the watcher. A watcher that is too slow loses decisions, and receives
// the number of lost ones.
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
	every  atomic.Uint32 // one in this many hits is sampled

	mu    sync.Mutex // protects pace and rings
	pace  pace
	rings [windows]ring // Hour lacks the current sub-window of Minute

	watching sync.Mutex // protects changes of watchers
	watchers atomic.Pointer[[]*Watcher]
}

// New returns an Observer without observations. caller returns the client that sent a request.
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

// Divided counts, for Top, decisions that clients made with their shares of a limit.
func (o *Observer) Divided(domain, rule string, entries []descriptors.Entry, allowed, denied uint64) {
	d := limiter.Decision{Domain: []byte(domain), Entries: entries, Facts: limiter.Facts{Rule: rule}}
	o.add(&d, sums{float64(allowed + denied), float64(denied)}, 1)
}

// Subject is the descriptor of a decision, possibly cut.
type Subject struct {
	Domain  []byte
	Entries []descriptors.Entry
	Cut     bool
}

// subjectOf copies at most room bytes of the descriptor of d.
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
	Domain, Rule string        // empty matches any
	Domains      []string      // the domain is one of these; nil matches any
	Entries      []EntryFilter // the descriptor has all of these
}

// EntryFilter matches descriptors with an entry.
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
