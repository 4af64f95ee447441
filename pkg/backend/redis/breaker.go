package redis

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// When a node is silent.
const (
	complaints = 5                      // of callers, in a row
	shortest   = 5 * time.Millisecond   // the time to wait below which a caller says nothing about a node
	quietFor   = 500 * time.Millisecond // after which a crowd is not let in any more
	lateFor    = 2 * time.Millisecond   // for which they complain, and nothing is heard: else this process may itself have stood still
)

// breaker keeps calls from a node that does not answer, or not in time, for two reasons.
//
// Batches fail: that is [remote.Breaker]'s, and opens at once where Redis is busy with a script.
//
// It is silent: five callers in a row, whose time is nearly up, have heard nothing, nor has anybody else meanwhile. That is
// known long before batches have failed, while those callers can still be answered by policy. The first word of the node, on
// a connection that there is or on a new one, ends it.
type breaker struct {
	batches *remote.Breaker[Error]
	changed func(state string)

	begun    time.Time             // what the times below are counted from, by the monotonic clock
	silent   atomic.Pointer[Error] // what callers are told while it is silent, else nil
	asked    atomic.Int64          // when the node was asked first of what it has not answered, or before heard
	heard    atomic.Int64          // when the node answered last
	patience atomic.Int64          // how long callers wait, about

	mu    sync.Mutex
	state string        // of batches
	shown string        // what changed was told last
	since time.Duration // when the first of those complained who do so in a row
	count int           // how many these are
}

func newBreaker(node string, changed func(node, state string)) *breaker {
	b := &breaker{begun: time.Now(), changed: func(string) {}, state: remote.Closed, shown: remote.Closed}
	if changed != nil {
		b.changed = func(state string) { changed(node, state) }
	}
	b.batches = remote.NewBreaker(node, remote.How[Error]{
		Kept:   kept,
		AtOnce: func(e *Error) bool { return e.Class == ClassBusy },
		Changed: func(_, state string) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.state = state
			b.show()
		},
	})
	return b
}

// kept is the error of calls that are kept away because of e.
func kept(e *Error) *Error {
	return &Error{Class: e.Class, Node: e.Node, Unsent: true, text: "calls are kept away, because of: " + e.text, code: e.code}
}

// show tells of the state if it is another than before. b.mu is held.
func (b *breaker) show() {
	state := b.state
	if state == remote.Closed && b.silent.Load() != nil {
		state = remote.Open
	}
	if state != b.shown {
		b.shown = state
		b.changed(state)
	}
}

// open reports whether calls are kept away, but for probes.
func (b *breaker) open() bool { return b.silent.Load() != nil || b.batches.Shut() }

// admit reports whether a call may be queued, or why not. One that is a probe should not count on an answer.
func (b *breaker) admit(now time.Time, budget time.Duration) (probe bool, refused *Error) {
	if e := b.silent.Load(); e != nil {
		return false, e
	}
	if !b.batches.Shut() {
		return false, nil
	}
	refused = b.batches.Admit(now, budget)
	return refused == nil, refused
}

// quiet reports whether the node has not answered for some time, though it was asked.
func (b *breaker) quiet(now time.Time) bool {
	asked := b.asked.Load()
	return asked > b.heard.Load() && now.Sub(b.begun)-time.Duration(asked) > quietFor
}

// ask notes that the node is asked something.
func (b *breaker) ask(now time.Time) {
	if asked := b.asked.Load(); asked <= b.heard.Load() {
		b.asked.CompareAndSwap(asked, int64(now.Sub(b.begun)))
	}
}

// hear notes that the node answered.
func (b *breaker) hear(now time.Time) {
	b.heard.Store(int64(now.Sub(b.begun)))
	if b.silent.Load() != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.silent.Store(nil)
		b.show()
	}
}

// waits notes how long one of the callers of a batch waits.
func (b *breaker) waits(budget time.Duration) {
	before := b.patience.Load()
	b.patience.Store(before + (int64(budget)-before)/8)
}

// complain counts a caller that has waited nearly as long as it can. Where that makes the node a silent one it returns what
// callers are told then. It does not count one that waits much shorter than others do, nor one that heard of others' answers
// meanwhile.
func (b *breaker) complain(now time.Time, waited time.Duration, e *Error) (silent *Error) {
	if b.open() || waited < max(shortest, time.Duration(b.patience.Load())/2) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, heard := now.Sub(b.begun), time.Duration(b.heard.Load())
	if heard > at-waited {
		return nil
	}
	if heard >= b.since {
		b.since, b.count = at, 0
	}
	b.count++
	if b.count < complaints || at-b.since < lateFor || b.silent.Load() != nil {
		return nil
	}
	silent = kept(e)
	b.silent.Store(silent)
	if time.Duration(b.heard.Load()) != heard { // a word that came meanwhile may have seen no silence to end
		b.silent.Store(nil)
		return nil
	}
	b.show()
	return silent
}
