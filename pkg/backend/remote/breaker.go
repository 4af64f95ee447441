package remote

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// Thresholds and times of a breaker.
const (
	failuresInARow = 5
	ratioOf        = 20 // minimum number of calls in ratioWindow for which a failure rate of one half opens it
	ratioWindow    = time.Second
	ratioBucket    = 100 * time.Millisecond
	probeEach      = 250 * time.Millisecond // ± 20 %
	goodProbes     = 2
)

// SilentAfter is the age of the oldest unanswered command at which a server counts as silent, unless round trips may take longer.
const SilentAfter = 50 * time.Millisecond

// lateFor is additional time before a server counts as silent: if this process was suspended, answers may be waiting to be read.
const lateFor = 5 * time.Millisecond

// Breaker tracks the health of a server. It blocks calls to a server that fails or answers too late. Its states are
//
//	       5 failures in a row, half of              250 ms
//	  up ─ at least 20 calls in a second, ──▶ open ──────────▶ probing
//	   ▲   or one of the class AtOnce           ▲                │  │
//	   │                                        └── a failure ───┘  │
//	   └───────────── two calls succeed, one after the other ───────┘
//
//	any ── the oldest command is 50 ms old ──▶ silent ── an answer ────▶ up, open or probing, as calls went
//	any ── no connection ────────────────────▶ down ──── a connection ─▶ likewise, or silent
//
// Calls are admitted only in the state up and, one at a time, while probing. Silence depends on the age of the oldest unanswered command,
// not on the patience of callers, so it is detected long before calls fail.
//
// The methods of a Breaker are safe for concurrent use.
type Breaker struct {
	config  BreakerConfig
	mute    *Error // error of calls blocked because of silence
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	begun   time.Time             // origin of the times below, which use the monotonic clock
	last    atomic.Pointer[Error] // error of calls blocked because of failures
	atOnce  atomic.Bool           // the next failure opens the circuit
	probe   atomic.Int64          // time until which a probe is in progress

	asked   atomic.Int64 // time of sending the oldest unanswered command; not after heard if there is none
	heard   atomic.Int64 // time of the last answer
	timer   *time.Timer  // calls look
	armed   atomic.Bool  // timer runs
	suspect int64        // time of the command that was too old at the last call of look; used only by look

	state atomic.Uint32 // a health, derived from the fields below by update
	mu    sync.Mutex
	calls health                // up, open or probing, according to the outcome of calls
	mum   atomic.Bool           // the server is silent
	apart atomic.Pointer[Error] // reason why there is no connection; nil while there is one, or before the first attempt
	shown string                // the state last passed to Changed
}

// health is a state of a [Breaker].
type health uint32

const (
	up health = iota
	open
	probing
	silent
	down
)

// The states of a breaker, as passed to [BreakerConfig.Changed].
const (
	Closed   = "closed"    // up
	HalfOpen = "half-open" // probing
	Open     = "open"      // open, silent or down
	Gone     = "gone"      // its server is no longer used; always the last state
)

// BreakerConfig configures a [Breaker]. The zero value is valid.
type BreakerConfig struct {
	OpTimeout time.Duration            // time without an answer after which the server is silent; at least [SilentAfter]
	AtOnce    Class                    // class of errors of which one opens the breaker; empty for none
	Changed   func(node, state string) // called with the first state and each change; may be nil
	Silenced  func()                   // called after Changed when silence begins, never concurrently; may be nil
}

// NewBreaker returns a breaker for a server of a store, in the state up.
func NewBreaker(store Store, node string, c BreakerConfig) *Breaker {
	if c.Changed == nil {
		c.Changed = func(string, string) {}
	}
	if c.Silenced == nil {
		c.Silenced = func() {}
	}
	c.OpTimeout = max(c.OpTimeout, SilentAfter)
	b := &Breaker{config: c, mute: store.Failed(Timeout, node, "it does not answer").KeptAway(), begun: time.Now()}
	b.asked.Store(-1) // before any time
	b.heard.Store(-1)
	b.suspect = -1
	b.timer = time.AfterFunc(c.OpTimeout, b.look)
	b.timer.Stop()
	b.circuit = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: node, MaxRequests: goodProbes, Interval: ratioWindow, BucketPeriod: ratioBucket,
		Timeout: probeEach*4/5 + rand.N(probeEach*2/5),
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= failuresInARow || c.Requests >= ratioOf && 2*c.TotalFailures >= c.Requests ||
				b.atOnce.Swap(false)
		},
		OnStateChange: func(_ string, _, to gobreaker.State) {
			after := map[gobreaker.State]health{gobreaker.StateClosed: up, gobreaker.StateOpen: open, gobreaker.StateHalfOpen: probing}
			b.update(func() { b.calls = after[to] })
		},
	})
	b.update(func() {}) // reports the first state to Changed, whose last one may have been Gone
	return b
}

// update applies a change, derives the state, and reports it.
func (b *Breaker) update(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
	state := b.calls
	if b.apart.Load() != nil {
		state = down
	} else if b.mum.Load() {
		state = silent
	}
	b.state.Store(uint32(state))
	shown := [...]string{up: Closed, open: Open, probing: HalfOpen, silent: Open, down: Open}[state]
	if b.shown != Gone && b.shown != shown {
		b.show(shown)
	}
}

// show reports a state to Changed. b.mu must be held.
func (b *Breaker) show(state string) {
	b.shown = state
	b.config.Changed(b.circuit.Name(), state)
}

// Connected records that a connection to the server is up.
func (b *Breaker) Connected() { b.Disconnected(nil) }

// Disconnected records the reason why there is no connection to the server. Calls are blocked until Connected.
func (b *Breaker) Disconnected(why *Error) { b.update(func() { b.apart.Store(why) }) }

// Down returns the reason why there is no connection to the server, or nil if there is one, or no attempt has been made.
func (b *Breaker) Down() *Error { return b.apart.Load() }

// Retire reports the state Gone. It must be called when the server is no longer used; otherwise the last reported state, probably open,
// would remain forever. Calls in progress may still use b.
func (b *Breaker) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != Gone {
		b.show(Gone)
	}
}

// Open reports whether calls other than probes are blocked.
func (b *Breaker) Open() bool { return health(b.state.Load()) != up }

// Silent reports whether the server is silent, connected or not.
func (b *Breaker) Silent() bool { return b.mum.Load() }

// Mute returns the error of calls blocked because of silence.
func (b *Breaker) Mute() *Error { return b.mute }

// Admit returns nil if a call may be queued, and otherwise the error of the call. While probing, it admits one call at a time: the next
// one after the end of the probe, or after the budget of the probe.
func (b *Breaker) Admit(now time.Time, budget time.Duration) *Error {
	state := health(b.state.Load())
	if state == open {
		b.circuit.State() // may change the state to probing
		state = health(b.state.Load())
	}
	switch state {
	case up:
		return nil
	case down:
		if e := b.apart.Load(); e != nil {
			return e
		}
		return nil // the connection has just come up
	case silent:
		return b.mute
	case probing:
		until := b.probe.Load()
		if n := int64(now.Sub(b.begun)); n > until && b.probe.CompareAndSwap(until, n+int64(budget)) {
			return nil
		}
	case open:
	}
	return b.last.Load()
}

// Begin must be called before a call is sent, and done afterwards with its outcome: nil, or the error of a failure. If unsent is not nil,
// the call must not be sent, and done is nil.
func (b *Breaker) Begin() (done func(*Error), unsent *Error) {
	end, err := b.circuit.Allow()
	if err != nil {
		return nil, b.last.Load()
	}
	return func(e *Error) {
		if e == nil {
			end(nil)
		} else {
			b.last.Store(e.KeptAway())
			b.atOnce.Store(e.Class == b.config.AtOnce)
			end(errFailed)
		}
		b.probe.Store(0)
	}, nil
}

// errFailed represents every failure in gobreaker.
var errFailed = errors.New("failed")

// Sent must be called before a command is sent.
func (b *Breaker) Sent() {
	asked, heard := b.asked.Load(), b.heard.Load()
	if asked <= heard && b.asked.CompareAndSwap(asked, max(b.now(), heard+1)) { // otherwise an older one is unanswered
		b.arm()
	}
}

// Received must be called for each answer of the server, on any connection.
func (b *Breaker) Received() {
	b.heard.Store(b.now())
	if b.mum.Load() {
		b.update(func() { b.mum.Store(false) })
	}
}

// Forget must be called when a connection breaks, because commands sent over it remain unanswered. It does not end a silence.
func (b *Breaker) Forget() {
	if asked, heard := b.asked.Load(), b.heard.Load(); asked > heard {
		b.asked.CompareAndSwap(asked, heard)
	}
}

// Age returns the age of the oldest unanswered command, or 0 if there is none.
func (b *Breaker) Age() time.Duration {
	asked := b.asked.Load()
	if asked <= b.heard.Load() {
		return 0
	}
	return time.Duration(b.now() - asked)
}

func (b *Breaker) now() int64 { return int64(time.Since(b.begun)) }

// arm starts the timer unless it is running. The timer runs only while a command is unanswered, and is not reset for each command.
func (b *Breaker) arm() {
	if b.armed.CompareAndSwap(false, true) {
		b.timer.Reset(b.config.OpTimeout)
	}
}

// look checks the age of the oldest command. The server is silent if the same command is too old in two consecutive checks.
func (b *Breaker) look() {
	asked, heard := b.asked.Load(), b.heard.Load()
	age := time.Duration(b.now() - asked)
	switch {
	case asked <= heard || b.mum.Load():
	case age < b.config.OpTimeout:
		b.timer.Reset(b.config.OpTimeout - age)
		return
	case b.suspect != asked:
		b.suspect = asked
		b.timer.Reset(lateFor)
		return
	default:
		b.update(func() {
			b.mum.Store(true)
			if b.heard.Load() != heard { // Received may have run before mum was set, and so not have cleared it
				b.mum.Store(false)
			}
		})
		if b.mum.Load() {
			b.config.Silenced()
		}
	}
	b.suspect = -1
	b.armed.Store(false)
	if b.asked.Load() > b.heard.Load() && !b.mum.Load() { // sent meanwhile, by a caller that found the timer running
		b.arm()
	}
}
