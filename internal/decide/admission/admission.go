// Package admission decides which calls a busy process works on, so that those it works on are answered in time.
//
// A process that has more to do than it can does everything late: bytes wait in sockets, calls for a processor, answers
// for being written. This package keeps that waiting in one place, a queue, with three ideas of the field, each in a file
// of its own: a limit on the calls in flight that follows delay (limit.go), a queue that serves the newest first and
// drops early while it stands (queue.go), and turns for domains by deficit round robin (fair.go).
//
// One goroutine gives turns, in rounds, and runs only while a call waits. A round begins when everything that could run
// has run and everything that has arrived has been read (see [poller]), so the time between two rounds is the delay that
// this process adds to each step of a call. It is the only signal: the time that a store takes is none of it, since
// nothing waits for a processor meanwhile.
//
//	            LetIn        Enter, Wait               Done
//	headers ──────┬──── message ───┬──── Proceed ────────┬──── answer
//	              │                ├──── Fallback: on_failure decides
//	              └──── Reject     └──── Reject
//
// This package is part of the core.
package admission

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	mostInFlight = 4096                   // calls; the limit's upper bound
	startsLate   = time.Millisecond       // from a call's headers to its handler, beyond which the process is busy
	restTime     = time.Millisecond       // between two rounds while calls in flight wait for a store alone
	mostBytes    = 64 << 20               // of the messages of calls that wait
	idleAfter    = 100 * time.Millisecond // without a call that waited, after which Stats reports no wait
)

// Verdict says what becomes of a call.
type Verdict uint8

// The verdicts.
const (
	Proceed  Verdict = iota // decide it, and call Done
	Fallback                // let on_failure decide it: there is no time for a counter
	Reject                  // fail it: there is no time for that either, or on_failure would fail it anyway
)

// Call is a call whose message has been received.
type Call struct {
	Domain     uint32        // a hash of the domain's name
	Cost       int           // descriptors of the request; less than 1 counts as 1
	Size       int           // bytes of its message
	Late       time.Duration // from its headers to its handler
	Deadline   time.Time     // when its caller gives up; zero means that of [New] from now
	NoFallback bool          // on_failure can only fail it
	Source     *Source       // its connection; may be nil
}

// Source is a connection that calls come from. The zero value is ready for use.
type Source struct {
	domain  uint32 // of its last call
	mixed   int    // the last round in which that changed
	round   int    // in which letIn was counted
	letIn   int    // calls let in since that round
	noticed bool   // domain is set
}

// Gate decides which calls proceed. Its methods are safe for concurrent use.
type Gate struct {
	patience time.Duration // of callers without a deadline
	pass     func()        // returns once all that could run has run
	kick     chan struct{} // a call in flight has ended while the dispatcher rests
	calls    sync.Pool     // of *waiting
	begun    time.Time

	busy    atomic.Bool  // a call waits, so each has to
	resting atomic.Bool  // the dispatcher waits for a kick
	limit   atomic.Int64 // what core.limit is, for those without the lock

	mu   sync.Mutex
	core core

	_        [64]byte // what each call writes has a cache line of its own
	inFlight atomic.Int64
	_        [56]byte
}

// New returns a Gate. So long does a caller without a deadline wait.
func New(patience time.Duration) *Gate {
	g := &Gate{patience: patience, pass: newPoller().pass, kick: make(chan struct{}, 1), begun: time.Now(), core: newCore()}
	g.calls.New = func() any { return &waiting{turn: make(chan Verdict, 1)} }
	g.limit.Store(mostInFlight)
	return g
}

// LetIn reports whether a call is received, whose headers have been read on connection s. One that is not has to be
// failed. It never waits.
func (g *Gate) LetIn(s *Source) bool {
	if !g.busy.Load() {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.letIn(s)
}

// Enter reports whether a call whose handler began late after its headers were read proceeds at once, as all do unless the
// process is busy. If it does, Done must be called when it has been decided; otherwise Wait.
func (g *Gate) Enter(late time.Duration) bool {
	if g.busy.Load() || late >= startsLate {
		return false
	}
	if g.inFlight.Add(1) <= g.limit.Load() {
		return true
	}
	g.inFlight.Add(-1)
	return false
}

// Wait returns what becomes of a call, once it is its turn. If that is Proceed, Done must be called when the call has been
// decided.
func (g *Gate) Wait(c Call) Verdict {
	w := g.calls.Get().(*waiting)
	w.Call = c
	v := Reject
	if g.enqueue(w) {
		v = <-w.turn
	}
	w.Call = Call{}
	g.calls.Put(w)
	return v
}

// enqueue has w wait for its turn, and reports whether there is room for it.
func (g *Gate) enqueue(w *waiting) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if w.Deadline.IsZero() {
		w.Deadline = now.Add(g.patience)
	}
	if !g.core.enqueue(g.at(now), g.at(w.Deadline), w) {
		return false
	}
	if !g.busy.Swap(true) {
		go g.dispatch()
	}
	return true
}

// Done must be called once a call that proceeded has been decided.
func (g *Gate) Done() {
	g.inFlight.Add(-1)
	if g.resting.Load() && g.resting.CompareAndSwap(true, false) {
		g.kick <- struct{}{}
	}
}

// dispatch gives turns until no call waits.
func (g *Gate) dispatch() {
	timer := time.NewTimer(restTime)
	defer timer.Stop()
	for last := time.Now(); ; {
		g.pass()
		now := time.Now()
		state := g.round(now, now.Sub(last))
		last = now
		switch state {
		case drained:
			return
		case blocked:
			timer.Reset(restTime)
			g.rest(timer)
			last = time.Now()
		case working:
		}
	}
}

// round gives turns, of which the last ones were given lap ago.
func (g *Gate) round(now time.Time, lap time.Duration) state {
	g.mu.Lock()
	defer g.mu.Unlock()
	state := g.core.round(g.at(now), lap, int(g.inFlight.Load()), func(w *waiting, v Verdict) {
		if v == Proceed {
			g.inFlight.Add(1)
		}
		w.turn <- v
	})
	g.limit.Store(int64(g.core.limit.calls))
	switch state {
	case drained:
		g.busy.Store(false)
	case blocked:
		g.resting.Store(true)
	case working:
	}
	return state
}

// rest waits until a call in flight ends, or for the timer: then there is nothing to do but for a store.
func (g *Gate) rest(timer *time.Timer) {
	select {
	case <-g.kick:
	case <-timer.C:
		if !g.resting.CompareAndSwap(true, false) {
			<-g.kick // Done sends
		}
	}
}

// at returns a time as the core has it.
func (g *Gate) at(t time.Time) time.Duration { return t.Sub(g.begun) }

// Stats is what a Gate does at present.
type Stats struct {
	Calls int64         // that wait or are in flight
	Limit int64         // of those in flight
	Wait  time.Duration // for a turn, on average; 0 if no call waited recently
}

// Stats returns what g does at present.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Stats{Calls: g.inFlight.Load() + int64(g.core.queue.calls), Limit: int64(g.core.limit.calls)}
	idle := g.at(time.Now()) - g.core.drained
	if g.busy.Load() || idle < idleAfter {
		s.Wait = g.core.waited
	}
	if !g.busy.Load() && idle > surgeEnds {
		s.Limit = mostInFlight
	}
	return s
}
