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

// Breaker keeps calls away from a server that does not answer, or not in time. It opens on five failed calls in a row, on failure
// of half of at least twenty calls in a second, or on a single failure of the class [BreakerConfig.AtOnce]. While it is open, one
// call is let through every quarter of a second, and two successful ones close it. It is also open while there is no connection to
// the server, and while the server is silent: that is known long before calls have failed, and lasts until the server's next word.
// Its methods are safe for concurrent use.
type Breaker struct {
	// Silence must be notified of everything that is sent to the server, and of its answers.
	Silence *Silence

	cb     *gobreaker.TwoStepCircuitBreaker[struct{}]
	config BreakerConfig
	mute   *Error                // of calls that are kept away because of silence
	down   atomic.Pointer[Error] // why there is no connection; nil while there is one, or before the first attempt
	shut   atomic.Bool           // not closed: calls have to ask
	last   atomic.Pointer[Error] // the error of calls that are kept away
	atOnce atomic.Bool           // the next failure opens the breaker
	begun  time.Time             // when b was made
	probe  atomic.Int64          // until when a probe is under way, in monotonic nanoseconds since begun

	mu     sync.Mutex
	state  string // of cb, or gone
	silent bool   // there is a connection, and no answer
	shown  string // the state last passed to Changed
}

// The states of a breaker, as passed to [BreakerConfig.Changed].
const (
	Closed   = "closed"
	HalfOpen = "half-open"
	Open     = "open"
	Gone     = "gone" // its server is no longer used; always the last state
)

// BreakerConfig is the configuration of a [Breaker]. Its zero value works.
type BreakerConfig struct {
	OpTimeout time.Duration            // the server is silent after so long without an answer, but no sooner than [SilentAfter]
	AtOnce    Class                    // a single failure of this class opens the breaker; empty means none
	Changed   func(node, state string) // called with the first state, and when it changes; may be nil
	Silenced  func(silent bool)        // called after Changed when silence begins or ends; may be nil
}

// NewBreaker returns a closed breaker for a server of a store.
func NewBreaker(store Store, node string, c BreakerConfig) *Breaker {
	if c.Changed == nil {
		c.Changed = func(string, string) {}
	}
	if c.Silenced == nil {
		c.Silenced = func(bool) {}
	}
	b := &Breaker{config: c, begun: time.Now(), state: Closed, shown: Closed}
	b.mute = store.Failed(Timeout, node, "it does not answer").KeptAway()
	b.Silence = NewSilence(max(c.OpTimeout, SilentAfter), func(silent bool) {
		b.hush(silent)
		c.Silenced(silent)
	})
	b.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: node, MaxRequests: goodProbes, Interval: ratioWindow, BucketPeriod: ratioBucket,
		Timeout: probeEach*4/5 + rand.N(probeEach*2/5),
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= failuresInARow || c.Requests >= ratioOf && 2*c.TotalFailures >= c.Requests ||
				b.atOnce.Swap(false)
		},
		OnStateChange: func(_ string, _, to gobreaker.State) {
			b.shut.Store(to != gobreaker.StateClosed)
			b.tell(to.String())
		},
	})
	c.Changed(node, Closed) // so that it is known; it may have been gone
	return b
}

// tell notes a state, unless the last one was noted.
func (b *Breaker) tell(state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != Gone {
		b.state = state
		b.show()
	}
}

// show passes the state to Changed if it has changed. b.mu must be held.
func (b *Breaker) show() {
	state := b.state
	if state == Closed && (b.down.Load() != nil || b.silent) {
		state = Open
	}
	if state != b.shown {
		b.shown = state
		b.config.Changed(b.cb.Name(), state)
	}
}

// hush notes whether the server is silent.
func (b *Breaker) hush(silent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = silent
	b.show()
}

// Connected notes that a connection to the server is up.
func (b *Breaker) Connected() { b.Disconnected(nil) }

// Disconnected notes why there is no connection to the server. While there is none calls are kept away, and the state is
// reported as open.
func (b *Breaker) Disconnected(why *Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down.Store(why)
	b.show()
}

// Down returns why there is no connection to the server, or nil if there is one, or none has been tried yet.
func (b *Breaker) Down() *Error { return b.down.Load() }

// Retire must be called when the server is no longer used; otherwise its last state, most likely open, would be shown
// forever. Calls under way may still use b.
func (b *Breaker) Retire() { b.tell(Gone) }

// Open reports whether calls are kept away, except for probes, although there is a connection.
func (b *Breaker) Open() bool { return b.Silence.Silent() || b.shut.Load() }

// Shut is Open, apart from silence.
func (b *Breaker) Shut() bool { return b.shut.Load() }

// Mute returns the error of calls that are kept away because of silence.
func (b *Breaker) Mute() *Error { return b.mute }

// Admit reports whether a call may be queued (nil), or why not. In the half-open state it lets one through at a time,
// for as long as the budget of the last.
func (b *Breaker) Admit(now time.Time, budget time.Duration) *Error {
	if e := b.down.Load(); e != nil {
		return e
	}
	if b.Silence.Silent() {
		return b.mute
	}
	if !b.shut.Load() {
		return nil
	}
	if b.cb.State() == gobreaker.StateHalfOpen {
		until := b.probe.Load()
		if n := int64(now.Sub(b.begun)); n > until && b.probe.CompareAndSwap(until, n+int64(budget)) {
			return nil
		}
	} else if !b.shut.Load() {
		return nil
	}
	return b.last.Load()
}

// Begin must be called before a call is sent, and done after it with the outcome: nil, or the error that makes it a
// failure. If unsent is not nil the call must not be sent, and done is nil.
func (b *Breaker) Begin() (done func(*Error), unsent *Error) {
	end, err := b.cb.Allow()
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
