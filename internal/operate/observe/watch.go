package observe

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// Limits of watchers.
const (
	MaxWatchers  = 8
	MaxPerSecond = 10_000
	MaxNarrow    = 6    // watchers of callers who may only read or have a token for some domains, to leave room for others
	MaxOfToken   = 2    // watchers with the same token for some domains
	buffered     = 512  // decisions queued for a watcher
	maxLine      = 1024 // bytes of a decision's domain and entries
)

// ErrTooMany is wrapped by errors for an excessive watcher. Their text names the limit.
var ErrTooMany = errors.New("there is no room for another watcher")

// Line is a decision for watchers. It is immutable.
type Line struct {
	limiter.Decision // a copy without Limit

	Cut    bool // Domain or Entries are cut
	Caller string
	Limit  string
}

// Options configures a watcher.
type Options struct {
	Filter

	Outcomes  []limiter.Outcome // one of these; none means any
	OneIn     uint32            // sample one in this many matching decisions at random; 0 means all
	PerSecond uint32            // maximum lines a second; 0 means MaxPerSecond
	Narrow    bool              // the watcher may only read, or has a token for some domains
	Token     string            // the name of a token for some domains, or empty
}

// Watcher receives decisions until it is closed.
type Watcher struct {
	observer *Observer
	options  Options
	lines    chan *Line

	lost, skipped atomic.Uint64
	second, sent  atomic.Int64 // the current second, and the lines sent in it
}

// Watchers returns the number of watchers.
func (o *Observer) Watchers() int { return len(*o.watchers.Load()) }

// Watch adds a watcher, which the caller must close. Errors wrap [ErrTooMany].
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

// crowded returns an error if there is no room for another watcher.
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

// Close removes w. Further calls do nothing.
func (w *Watcher) Close() {
	o := w.observer
	o.watching.Lock()
	defer o.watching.Unlock()
	o.watchers.Store(new(slices.DeleteFunc(slices.Clone(*o.watchers.Load()), func(x *Watcher) bool { return x == w })))
}

// Lines returns the channel of lines.
func (w *Watcher) Lines() <-chan *Line { return w.lines }

// Missed returns the numbers of decisions that w missed since the last call: lost ones, because w was too slow, and
// skipped ones, above its rate.
func (w *Watcher) Missed() (lost, skipped uint64) { return w.lost.Swap(0), w.skipped.Swap(0) }

// offer sends a copy of d to w, unless d does not match or w is too slow.
func (w *Watcher) offer(d *limiter.Decision, caller func() string) {
	if !w.wants(d) {
		return
	}
	if len(w.lines) == cap(w.lines) { // check before copying
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

// wants reports whether d matches the options of w.
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
