package redis

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// When a node counts as silent.
const (
	complaints = 5                      // of callers, in a row
	shortest   = 5 * time.Millisecond   // callers that wait for less than this say nothing about a node
	quietFor   = 500 * time.Millisecond // after this long, a crowd is no longer let in
	lateFor    = 2 * time.Millisecond   // over which complaints must spread with no answer heard; otherwise this process itself may have stalled
)

// breaker keeps calls away from a node that does not answer, or not in time. There are two reasons to open it.
//
// Batches fail. This is left to [remote.Breaker], which opens at once if Redis is busy with a script.
//
// The node is silent: five callers in a row, whose time is nearly up, have had no answer, and nobody else has had one
// in the meantime. That is known long before batches fail, while those callers can still be answered by policy. The
// first reply of the node, on an existing connection or a new one, ends the silence.
type breaker struct {
	batches *remote.Breaker[Error]
	changed func(state string)

	begun    time.Time             // the times below are measured from it, by the monotonic clock
	silent   atomic.Pointer[Error] // the error of callers while the node is silent, else nil
	asked    atomic.Int64          // when the oldest request without an answer was sent; not after heard if there is none
	heard    atomic.Int64          // when the node last answered
	patience atomic.Int64          // about how long callers wait

	mu    sync.Mutex
	state string        // of batches
	shown string        // the state last passed to changed
	since time.Duration // when the first complaint in a row came
	count int           // complaints in a row
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

// kept returns the error of calls that are kept away because of e.
func kept(e *Error) *Error {
	return &Error{Class: e.Class, Node: e.Node, Unsent: true, text: "calls are kept away, because of: " + e.text, code: e.code}
}

// show passes the state to changed if it has changed. b.mu must be held.
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

// open reports whether calls are kept away, except for probes.
func (b *breaker) open() bool { return b.silent.Load() != nil || b.batches.Shut() }

// admit returns nil if a call may be queued, or why it may not. A call that is a probe should not count on an answer.
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

// ask notes that a request is sent to the node.
func (b *breaker) ask(now time.Time) {
	if asked := b.asked.Load(); asked <= b.heard.Load() {
		b.asked.CompareAndSwap(asked, int64(now.Sub(b.begun)))
	}
}

// hear notes that the node has answered.
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

// complain counts a caller that has waited nearly as long as it can. If that makes the node silent it returns the error
// that callers get from now on. It does not count a caller whose wait is much shorter than that of others, nor one
// during whose wait the node answered others.
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
	if time.Duration(b.heard.Load()) != heard { // a reply that came in between may have found no silence to end
		b.silent.Store(nil)
		return nil
	}
	b.show()
	return silent
}
