package remote

import (
	"cmp"
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

// Breaker keeps calls away from a server that does not answer, or not in time. It opens on five failed calls in a row,
// on failure of half of at least twenty calls in a second, or at once if [How.AtOnce] says so. While it is open one
// call is let through every quarter of a second, and two successful ones close it. It is also open while the server is
// silent, which is known long before calls have failed, and lasts until its first word. E is the store's error type.
// Its methods are safe for concurrent use.
type Breaker[E any] struct {
	// Silence must be told of what is sent to the server, and of its answers.
	Silence *Silence

	cb     *gobreaker.TwoStepCircuitBreaker[struct{}]
	how    How[E]
	shut   atomic.Bool       // not closed: calls have to ask
	last   atomic.Pointer[E] // the error of calls that are kept away
	atOnce atomic.Bool       // the next failure opens the breaker
	begun  time.Time         // when b was made
	probe  atomic.Int64      // until when a probe is under way, in monotonic nanoseconds since begun

	mu     sync.Mutex
	state  string // of cb, or gone
	apart  bool   // there is no connection
	silent bool   // there is one, and no answer
	shown  string // the state last passed to Changed
}

// The states of a breaker, as passed to [How.Changed].
const (
	Closed   = "closed"
	HalfOpen = "half-open"
	Open     = "open"
	Gone     = "gone" // its server is no longer used; always the last state
)

// How says how a [Breaker] treats a store's errors.
type How[E any] struct {
	Kept    func(*E) *E              // returns the error of calls that are kept away because of the given one
	AtOnce  func(*E) bool            // reports whether a single failure like this opens the breaker; nil means never
	Changed func(node, state string) // called when the state changes; may be nil

	SilentAfter time.Duration // without an answer; 0 means [SilentAfter]
	Mute        *E            // the error of calls that are kept away because of silence
	Silenced    func(bool)    // called after Changed when silence begins (true) or ends; may be nil
}

// NewBreaker returns a closed breaker for a server.
func NewBreaker[E any](node string, how How[E]) *Breaker[E] {
	b := &Breaker[E]{how: how, begun: time.Now(), state: Closed, shown: Closed}
	b.Silence = NewSilence(cmp.Or(how.SilentAfter, SilentAfter), func(silent bool) {
		b.hush(node, silent)
		if how.Silenced != nil {
			how.Silenced(silent)
		}
	})
	b.cb = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name: node, MaxRequests: goodProbes, Interval: ratioWindow, BucketPeriod: ratioBucket,
		Timeout: probeEach*4/5 + rand.N(probeEach*2/5),
		ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.ConsecutiveFailures >= failuresInARow || c.Requests >= ratioOf && 2*c.TotalFailures >= c.Requests ||
				b.atOnce.Swap(false)
		},
		OnStateChange: func(name string, _, to gobreaker.State) {
			b.shut.Store(to != gobreaker.StateClosed)
			b.tell(name, to.String())
		},
	})
	return b
}

// tell notes a state, unless the last one was noted.
func (b *Breaker[E]) tell(node, state string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != Gone {
		b.state = state
		b.show(node)
	}
}

// show passes the state to Changed if it has changed. b.mu must be held.
func (b *Breaker[E]) show(node string) {
	state := b.state
	if state == Closed && (b.apart || b.silent) {
		state = Open
	}
	if state != b.shown {
		b.shown = state
		if b.how.Changed != nil {
			b.how.Changed(node, state)
		}
	}
}

// hush notes whether the server is silent.
func (b *Breaker[E]) hush(node string, silent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent = silent
	b.show(node)
}

// Connected notes whether a connection to the server is up. While there is none the store keeps calls away by itself,
// and the state is reported as open.
func (b *Breaker[E]) Connected(yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.apart = !yes
	b.show(b.cb.Name())
}

// Retire must be called when the server is no longer used; otherwise its last state, most likely open, would be shown
// forever. Calls under way may still use b.
func (b *Breaker[E]) Retire() { b.tell(b.cb.Name(), Gone) }

// Open reports whether calls are kept away, except for probes.
func (b *Breaker[E]) Open() bool { return b.Silence.Silent() || b.shut.Load() }

// Shut is Open, apart from silence.
func (b *Breaker[E]) Shut() bool { return b.shut.Load() }

// Mute returns the error of calls that are kept away because of silence.
func (b *Breaker[E]) Mute() *E { return b.how.Mute }

// Admit reports whether a call may be queued (nil), or why not. In the half-open state it lets one through at a time,
// for as long as the budget of the last.
func (b *Breaker[E]) Admit(now time.Time, budget time.Duration) *E {
	if b.Silence.Silent() {
		return b.how.Mute
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
// failure. If refused is not nil the call must not be sent, and done is nil.
func (b *Breaker[E]) Begin() (done func(*E), refused *E) {
	end, err := b.cb.Allow()
	if err != nil {
		return nil, b.last.Load()
	}
	return func(e *E) {
		if e == nil {
			end(nil)
		} else {
			b.last.Store(b.how.Kept(e))
			b.atOnce.Store(b.how.AtOnce != nil && b.how.AtOnce(e))
			end(errFailed)
		}
		b.probe.Store(0)
	}, nil
}

// errFailed reports any failure to gobreaker.
var errFailed = errors.New("failed")
