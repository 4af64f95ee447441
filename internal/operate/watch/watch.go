// Package watch shows decisions to operators while they are made. Who decides publishes each descriptor of each request to a
// [Hub], which passes it on to the watchers whose filter it meets, each of which gets as many as it asked for.
//
// Publishing never waits: what a watcher is too slow for is lost to it, and it is told how many. While there is no watcher, all
// there is to do is to find that out, which is one atomic load.
//
// This package is optional: the core works without it.
package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds.
const (
	MaxWatchers  = 8
	MaxPerSecond = 10_000
	MaxNarrow    = 6    // of these, of callers who may only look or have a token for some domains only, so that there is room for others
	MaxOfToken   = 2    // of these, with the same token for some domains only
	buffered     = 512  // decisions that wait for a watcher
	maxText      = 1024 // bytes of a decision's domain and entries
)

// ErrTooMany is wrapped by the error for a watcher that is one too many, which says whose bound it is.
var ErrTooMany = errors.New("there is no room for another watcher")

// Line is a decision as a watcher gets it. It must not be changed.
type Line struct {
	limiter.Facts

	Time    time.Time
	Caller  string
	Domain  string
	Entries []Entry
	Cut     bool // Domain or Entries are not all there is, because that is too long
	Limit   string
}

// Entry is a key and a value.
type Entry struct{ Key, Value string }

// Filter says which decisions are wanted; the zero value stands for all.
type Filter struct {
	Domain, Rule string            // if not empty
	Domains      []string          // one of these; nil stands for all
	Entries      []EntryFilter     // the descriptor must have all of them
	Outcomes     []limiter.Outcome // one of these
}

// EntryFilter is an entry that a descriptor must have.
type EntryFilter struct {
	Key, Value string
	AnyValue   bool
}

// Options say what a watcher wants.
type Options struct {
	Filter    Filter
	OneIn     uint32 // of so many decisions that meet the filter, one is wanted, chosen at random; 0 means each
	PerSecond uint32 // the most lines in a second; 0 means MaxPerSecond
	Narrow    bool   // the watcher may only look, or has such a token
	Token     string // the name of the watcher's token, if it is for some domains only; otherwise empty
}

// Hub passes decisions on. It is safe for concurrent use; a nil Hub has no watchers.
type Hub struct {
	caller   func(context.Context) string
	mu       sync.Mutex
	watchers atomic.Pointer[[]*Watcher] // nil if there are none
}

// New returns a Hub that asks caller who sent a request.
func New(caller func(context.Context) string) *Hub { return &Hub{caller: caller} }

// Watcher gets decisions until it is closed.
type Watcher struct {
	hub     *Hub
	options Options
	lines   chan *Line

	lost, skipped atomic.Uint64
	second, sent  atomic.Int64 // lines sent in that second
}

// Watched reports whether there is a watcher.
func (h *Hub) Watched() bool { return h != nil && h.watchers.Load() != nil }

// Count returns how many watch.
func (h *Hub) Count() int {
	if all := h.watchers.Load(); all != nil {
		return len(*all)
	}
	return 0
}

// Watch adds a watcher, which must be closed; the error wraps [ErrTooMany].
func (h *Hub) Watch(o Options) (*Watcher, error) {
	if o.PerSecond == 0 || o.PerSecond > MaxPerSecond {
		o.PerSecond = MaxPerSecond
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []*Watcher
	if known := h.watchers.Load(); known != nil {
		all = slices.Clone(*known)
	}
	if err := crowded(all, &o); err != nil {
		return nil, err
	}
	w := &Watcher{hub: h, options: o, lines: make(chan *Line, buffered)}
	all = append(all, w)
	h.watchers.Store(&all)
	return w, nil
}

// crowded returns why there may be no further watcher; nil if there may.
func crowded(all []*Watcher, o *Options) error {
	narrow, same := 0, 0
	for _, w := range all {
		if w.options.Narrow {
			narrow++
		}
		if w.options.Token == o.Token {
			same++
		}
	}
	switch {
	case len(all) >= MaxWatchers:
		return fmt.Errorf("%w: there are %d, the maximum: end one of them", ErrTooMany, MaxWatchers)
	case o.Token != "" && same >= MaxOfToken:
		return fmt.Errorf("%w: there are %d with your token, which is limited to some domains: end one of them", ErrTooMany, MaxOfToken)
	case o.Narrow && narrow >= MaxNarrow:
		return fmt.Errorf("%w: there are %d of callers who may only look or have tokens for some domains only: end one of them", ErrTooMany, MaxNarrow)
	}
	return nil
}

// Close ends w. It may be called again.
func (w *Watcher) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.watchers.Load()
	if known == nil {
		return
	}
	all := slices.DeleteFunc(slices.Clone(*known), func(x *Watcher) bool { return x == w })
	if len(all) == 0 {
		h.watchers.Store(nil)
		return
	}
	h.watchers.Store(&all)
}

// Lines returns where lines come.
func (w *Watcher) Lines() <-chan *Line { return w.lines }

// Missed returns how many decisions w did not get since it was last asked: those that were lost because it was too slow,
// and those that were skipped because there were more than it wants in a second.
func (w *Watcher) Missed() (lost, skipped uint64) { return w.lost.Swap(0), w.skipped.Swap(0) }

// Publish shows d, which was made for a request of ctx, to those who want it. It keeps nothing of d.
func (h *Hub) Publish(ctx context.Context, d *limiter.Decision) {
	all := h.watchers.Load()
	if all == nil {
		return
	}
	var line *Line
	for _, w := range *all {
		if !w.wants(d) {
			continue
		}
		if line == nil {
			line = lineOf(d, h.caller(ctx))
		}
		select {
		case w.lines <- line:
		default:
			w.lost.Add(1)
		}
	}
}

// wants reports whether w gets d.
func (w *Watcher) wants(d *limiter.Decision) bool {
	if !w.options.Filter.meets(d) || w.options.OneIn > 1 && rand.Uint32N(w.options.OneIn) > 0 {
		return false
	}
	if second := d.Time.Unix(); w.second.Swap(second) != second {
		w.sent.Store(0)
	}
	if w.sent.Add(1) > int64(w.options.PerSecond) {
		w.skipped.Add(1)
		return false
	}
	return true
}

func (f *Filter) meets(d *limiter.Decision) bool {
	if f.Domains != nil && !slices.Contains(f.Domains, string(d.Domain)) {
		return false
	}
	if f.Domain != "" && f.Domain != string(d.Domain) || f.Rule != "" && f.Rule != d.Rule {
		return false
	}
	if len(f.Outcomes) > 0 && !slices.Contains(f.Outcomes, d.Outcome) {
		return false
	}
	for i := range f.Entries {
		want := &f.Entries[i]
		if !slices.ContainsFunc(d.Entries, func(e descriptors.Entry) bool {
			return want.Key == string(e.Key) && (want.AnyValue || want.Value == string(e.Value))
		}) {
			return false
		}
	}
	return true
}

// lineOf copies d.
func lineOf(d *limiter.Decision, caller string) *Line {
	l := &Line{Facts: d.Facts, Time: d.Time, Caller: caller}
	if d.Limit != nil {
		l.Limit = d.Limit.String()
	}
	room := maxText
	text := func(b []byte) string {
		if len(b) > room {
			b, l.Cut = b[:room], true
		}
		room -= len(b)
		return string(b)
	}
	l.Domain = text(d.Domain)
	for i := range d.Entries {
		if room == 0 {
			l.Cut = true
			break
		}
		l.Entries = append(l.Entries, Entry{Key: text(d.Entries[i].Key), Value: text(d.Entries[i].Value)})
	}
	return l
}
