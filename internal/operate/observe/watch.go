package observe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// Bounds.
const (
	MaxWatchers  = 8
	MaxPerSecond = 10_000
	MaxNarrow    = 6    // of these, of callers who may only look or have a token for some domains only, so that there is room for others
	MaxOfToken   = 2    // of these, with the same token for some domains only
	buffered     = 512  // decisions that wait for a watcher
	maxLine      = 1024 // bytes of a decision's domain and entries
)

// ErrTooMany is wrapped by the error for a watcher that is one too many, which says whose bound it is.
var ErrTooMany = errors.New("there is no room for another watcher")

// Line is a decision as a watcher gets it. It must not be changed.
type Line struct {
	limiter.Decision // a copy, without Limit

	Cut    bool // Domain or Entries are cut
	Caller string
	Limit  string
}

// Options configure a watcher.
type Options struct {
	Filter

	Outcomes  []limiter.Outcome // one of these; none stands for all
	OneIn     uint32            // of so many decisions that meet the filter, one is wanted, chosen at random; 0 means each
	PerSecond uint32            // the most lines in a second; 0 means MaxPerSecond
	Narrow    bool              // the watcher may only look, or has such a token
	Token     string            // the name of the watcher's token, if it is for some domains only; otherwise empty
}

// Watcher gets decisions until it is closed.
type Watcher struct {
	observer *Observer
	options  Options
	lines    chan *Line

	lost, skipped atomic.Uint64
	second, sent  atomic.Int64 // lines sent in that second
}

// Watchers returns how many watch.
func (o *Observer) Watchers() int { return len(*o.watchers.Load()) }

// Watch adds a watcher, which must be closed; the error wraps [ErrTooMany].
func (o *Observer) Watch(c Options) (*Watcher, error) {
	if c.PerSecond == 0 || c.PerSecond > MaxPerSecond {
		c.PerSecond = MaxPerSecond
	}
	o.watching.Lock()
	defer o.watching.Unlock()
	all := *o.watchers.Load()
	if err := crowded(all, &c); err != nil {
		return nil, err
	}
	w := &Watcher{observer: o, options: c, lines: make(chan *Line, buffered)}
	o.watchers.Store(new(append(slices.Clone(all), w)))
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
	o := w.observer
	o.watching.Lock()
	defer o.watching.Unlock()
	o.watchers.Store(new(slices.DeleteFunc(slices.Clone(*o.watchers.Load()), func(x *Watcher) bool { return x == w })))
}

// Lines returns where lines come.
func (w *Watcher) Lines() <-chan *Line { return w.lines }

// Missed returns how many decisions w did not get since it was last asked: those that were lost because it was too slow,
// and those that were skipped because there were more than it wants in a second.
func (w *Watcher) Missed() (lost, skipped uint64) { return w.lost.Swap(0), w.skipped.Swap(0) }

// offer sends d to w, unless w does not want it or is too slow. It keeps nothing of d.
func (w *Watcher) offer(d *limiter.Decision, caller func() string) {
	if !w.wants(d) {
		return
	}
	if len(w.lines) == cap(w.lines) { // before it copies
		w.lost.Add(1)
		return
	}
	subject := subjectOf(d, maxLine)
	l := &Line{Decision: *d, Cut: subject.Cut, Caller: caller()}
	l.Domain, l.Entries, l.Decision.Limit = subject.Domain, subject.Entries, nil
	if d.Limit != nil {
		l.Limit = d.Limit.String()
	}
	select {
	case w.lines <- l:
	default:
		w.lost.Add(1)
	}
}

// wants reports whether w gets d.
func (w *Watcher) wants(d *limiter.Decision) bool {
	o := &w.options
	if !o.sees(d.Domain) || !o.meets(d.Rule, d.Entries) || len(o.Outcomes) > 0 && !slices.Contains(o.Outcomes, d.Outcome) ||
		o.OneIn > 1 && rand.Uint32N(o.OneIn) > 0 {
		return false
	}
	if second := d.Time.Unix(); w.second.Swap(second) != second {
		w.sent.Store(0)
	}
	if w.sent.Add(1) > int64(o.PerSecond) {
		w.skipped.Add(1)
		return false
	}
	return true
}
