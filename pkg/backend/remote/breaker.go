package remote

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"
)

// When a breaker opens and closes.
const (
	failuresInARow = 5
	ratioOf        = 20 // calls in a second from which on a failure rate of one half opens it
	ratioWindow    = time.Second
	ratioBucket    = 100 * time.Millisecond
	probeEach      = 250 * time.Millisecond // ± 20 %
	goodProbes     = 2
)

// SilentAfter is the age of the oldest command without an answer at which a server counts as silent, unless its round
// trips may take longer.
const SilentAfter = 50 * time.Millisecond

// lateFor is how much longer a server must not answer: if this process has stood still, its answers may be waiting here.
const lateFor = 5 * time.Millisecond

// Breaker is the health of a server. It keeps calls away from a server that does not answer, or not in time. Its states are
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
// Only in the state up, and one at a time while probing, calls are let through. Silence is the age of the oldest command that the
// server has not answered, not how long callers are willing to wait: so it is known long before calls have failed.
//
// The methods of a Breaker are safe for concurrent use.
type Breaker struct {
	config  BreakerConfig
	mute    *Error // of calls that are kept away because of silence
	circuit *gobreaker.TwoStepCircuitBreaker[struct{}]
	begun   time.Time             // the times below are measured from it, by the monotonic clock
	last    atomic.Pointer[Error] // of calls that are kept away because of failures
	atOnce  atomic.Bool           // the next failure opens the circuit
	probe   atomic.Int64          // until when a probe is in progress

	asked   atomic.Int64 // when the oldest command without an answer was sent; not after heard if there is none
	heard   atomic.Int64 // when the server last answered
	timer   *time.Timer  // calls look
	armed   atomic.Bool  // timer runs
	suspect int64        // the command that was found old when look was last called; only look uses it

	state atomic.Uint32 // a health, which update derives from what follows
	mu    sync.Mutex
	calls health                // up, open or probing, as calls went
	mum   atomic.Bool           // the server is silent
	apart atomic.Pointer[Error] // why there is no connection; nil while there is one, or before the first attempt
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

// BreakerConfig is the configuration of a [Breaker]. Its zero value works.
type BreakerConfig struct {
	OpTimeout time.Duration            // the server is silent after so long without an answer, but no sooner than [SilentAfter]
	AtOnce    Class                    // a single failure of this class opens the breaker; empty means none
	Changed   func(node, state string) // called with the first state, and when it changes; may be nil
	Silenced  func()                   // called after Changed when silence begins, one call at a time; may be nil
}

// NewBreaker returns a breaker for a server of a store. Its state is up.
func NewBreaker(store Store, node string, c BreakerConfig) *Breaker {
	if c.Changed == nil {
		c.Changed = func(string, string) {}
	}
	if c.Silenced == nil {
		c.Silenced = func() {}
	}
	c.OpTimeout = max(c.OpTimeout, SilentAfter)
	b := &Breaker{config: c, mute: store.Failed(Timeout, node, "it does not answer").KeptAway(), begun: time.Now()}
	b.asked.Store(-1) // before all times
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
	b.update(func() {}) // so that Changed knows it; it may have been gone
	return b
}

// update changes what the state is derived from, derives it, and shows it.
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

// show passes a state to Changed. b.mu must be held.
func (b *Breaker) show(state string) {
	b.shown = state
	b.config.Changed(b.circuit.Name(), state)
}

// Connected notes that a connection to the server is up.
func (b *Breaker) Connected() { b.Disconnected(nil) }

// Disconnected notes why there is no connection to the server. Until there is one, calls are kept away.
func (b *Breaker) Disconnected(why *Error) { b.update(func() { b.apart.Store(why) }) }

// Down returns why there is no connection to the server, or nil if there is one, or none has been tried yet.
func (b *Breaker) Down() *Error { return b.apart.Load() }

// Retire must be called when the server is no longer used; otherwise its last state, most likely open, would be shown
// forever. Calls in progress may still use b.
func (b *Breaker) Retire() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != Gone {
		b.show(Gone)
	}
}

// Open reports whether calls are kept away, except for probes.
func (b *Breaker) Open() bool { return health(b.state.Load()) != up }

// Silent reports whether the server is silent, connected or not.
func (b *Breaker) Silent() bool { return b.mum.Load() }

// Mute returns the error of calls that are kept away because of silence.
func (b *Breaker) Mute() *Error { return b.mute }

// Admit reports whether a call may be queued (nil), or why not. While probing it lets one through at a time, for as long as the
// budget of the last.
func (b *Breaker) Admit(now time.Time, budget time.Duration) *Error {
	state := health(b.state.Load())
	if state == open {
		b.circuit.State() // it may be time to probe
		state = health(b.state.Load())
	}
	switch state {
	case up:
		return nil
	case down:
		if e := b.apart.Load(); e != nil {
			return e
		}
		return nil // it has just come up
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

// Begin must be called before a call is sent, and done after it with the outcome: nil, or the error that makes it a
// failure. If unsent is not nil the call must not be sent, and done is nil.
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

// errFailed reports any failure to gobreaker.
var errFailed = errors.New("failed")

// Sent must be called before a command is sent.
func (b *Breaker) Sent() {
	asked, heard := b.asked.Load(), b.heard.Load()
	if asked <= heard && b.asked.CompareAndSwap(asked, max(b.now(), heard+1)) { // otherwise there is an older one
		b.arm()
	}
}

// Received must be called when the server has answered, on any connection.
func (b *Breaker) Received() {
	b.heard.Store(b.now())
	if b.mum.Load() {
		b.update(func() { b.mum.Store(false) })
	}
}

// Forget must be called when a connection breaks, because the commands sent over it will not be answered any more. It
// does not end a silence.
func (b *Breaker) Forget() {
	if asked, heard := b.asked.Load(), b.heard.Load(); asked > heard {
		b.asked.CompareAndSwap(asked, heard)
	}
}

// Age returns how old the oldest command without an answer is, or 0 if there is none.
func (b *Breaker) Age() time.Duration {
	asked := b.asked.Load()
	if asked <= b.heard.Load() {
		return 0
	}
	return time.Duration(b.now() - asked)
}

func (b *Breaker) now() int64 { return int64(time.Since(b.begun)) }

// arm starts the timer, unless it runs. It runs only while there is a command without an answer, and is not set again for
// each.
func (b *Breaker) arm() {
	if b.armed.CompareAndSwap(false, true) {
		b.timer.Reset(b.config.OpTimeout)
	}
}

// look checks the age of the oldest command. It has to find the same one too old twice.
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
			if b.heard.Load() != heard { // anyone who heard it may have found no silence to end
				b.mum.Store(false)
			}
		})
		if b.mum.Load() {
			b.config.Silenced()
		}
	}
	b.suspect = -1
	b.armed.Store(false)
	if b.asked.Load() > b.heard.Load() && !b.mum.Load() { // asked meanwhile, by a caller that found the timer running
		b.arm()
	}
}
