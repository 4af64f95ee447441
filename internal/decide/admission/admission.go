// Package admission selects the calls that a busy process works on, so that it answers those calls in time.
//
// An overloaded process is late everywhere: bytes wait in sockets, calls wait for a processor, answers wait to be written. This package
// moves that waiting to one place, a queue. It combines three known techniques, each in a file of its own: a limit on the calls in flight
// that follows delay (limit.go), a queue that serves the newest call first and drops early while it stands (queue.go), and turns for
// domains by deficit round robin (fair.go).
//
// One goroutine, the dispatcher, gives turns in rounds. It runs only while a call waits. A round begins when all runnable goroutines have
// run and all arrived data has been read (see [poller]), so the time between two rounds, a lap, is the delay that this process adds to
// each step of a call. It is the only signal. It excludes the time that a store takes, because nothing waits for a processor meanwhile.
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
	maxInFlight = 4096                   // calls; upper bound of the limit
	startsLate  = time.Millisecond       // from a call's headers to its handler; at this delay the process is busy
	restTime    = time.Millisecond       // between two rounds while all calls in flight wait for a store
	maxBytes    = 64 << 20               // total size of the messages of waiting calls
	idleAfter   = 100 * time.Millisecond // without a waiting call, after which Stats reports no wait
)

// Verdict is the result of waiting for a turn.
type Verdict uint8

// The verdicts.
const (
	Proceed  Verdict = iota // decide the call, then call Done
	Fallback                // let on_failure decide the call: there is no time for a counter
	Reject                  // fail the call: there is no time for a fallback either, or on_failure would fail it anyway
)

// Call describes a call whose message has been received.
type Call struct {
	Domain     uint32        // hash of the domain's name
	Cost       int           // number of descriptors; less than 1 counts as 1
	Size       int           // size of its message in bytes
	Delay      time.Duration // time from its headers to its handler
	Deadline   time.Time     // time when its caller gives up; zero means now plus the patience passed to [New]
	NoFallback bool          // on_failure can only fail it
	Source     *Source       // its connection; may be nil
}

// Source is a connection. The zero value is ready for use.
type Source struct {
	domain    uint32 // of its last call
	mixed     int    // the last round in which domain changed
	round     int    // the round that letIn belongs to
	letIn     int    // calls let in since that round began
	hasDomain bool   // domain is set
}

// Gate limits the calls that proceed. Its methods are safe for concurrent use.
type Gate struct {
	patience time.Duration // of callers without a deadline
	pass     func()        // returns when all runnable goroutines have run
	kick     chan struct{} // receives when a call ends while the dispatcher rests
	calls    sync.Pool     // of *waiting
	begun    time.Time     // zero of the core's clock

	busy    atomic.Bool  // a call waits, so every other call must wait too
	resting atomic.Bool  // the dispatcher waits for a kick
	limit   atomic.Int64 // copy of core.limit, readable without mu

	mu   sync.Mutex
	core core

	_        [64]byte // separates inFlight, which every call writes, from other cache lines
	inFlight atomic.Int64
	_        [56]byte
}

// New returns a Gate. A caller without a deadline waits for patience.
func New(patience time.Duration) *Gate {
	g := &Gate{patience: patience, pass: newPoller().pass, kick: make(chan struct{}, 1), begun: time.Now(), core: newCore()}
	g.calls.New = func() any { return &waiting{turn: make(chan Verdict, 1)} }
	g.limit.Store(maxInFlight)
	return g
}

// LetIn reports whether to receive a call whose headers arrived on connection s. If it returns false, the caller must fail the call. It
// never waits.
func (g *Gate) LetIn(s *Source) bool {
	if !g.busy.Load() {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.letIn(s)
}

// Enter reports whether a call proceeds immediately; late is the time from its headers to its handler. Every call does unless the process
// is busy. If Enter returns true, the caller must call Done after deciding; otherwise it must call Wait.
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

// Wait waits for the call's turn and returns the verdict. If that is Proceed, the caller must call Done after deciding.
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

// enqueue puts w into the queue and reports whether there was room for it.
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

// Done must be called when a call that proceeded has been decided.
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

// round gives turns; lap is the time since the last round.
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

// rest waits until a call in flight ends or the timer fires. In the meantime, all calls in flight wait for a store.
func (g *Gate) rest(timer *time.Timer) {
	select {
	case <-g.kick:
	case <-timer.C:
		if !g.resting.CompareAndSwap(true, false) {
			<-g.kick // receive the kick that Done is sending
		}
	}
}

// at returns t on the core's clock.
func (g *Gate) at(t time.Time) time.Duration { return t.Sub(g.begun) }

// Stats describes the current state of a Gate.
type Stats struct {
	Calls int64         // calls that wait or are in flight
	Limit int64         // maximum number of calls in flight
	Wait  time.Duration // average wait for a turn; 0 if no call waited recently
}

// Stats returns the current state of g.
func (g *Gate) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := Stats{Calls: g.inFlight.Load() + int64(g.core.queue.calls), Limit: int64(g.core.limit.calls)}
	idle := g.at(time.Now()) - g.core.drained
	if g.busy.Load() || idle < idleAfter {
		s.Wait = g.core.waited
	}
	if !g.busy.Load() && idle > surgeEnds {
		s.Limit = maxInFlight
	}
	return s
}
