package remote

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The store of tests and its class of errors of which one opens a breaker.
const (
	store     Store = "store"
	busy      Class = "busy"
	muteText        = "store node: timeout: the breaker is open because of: it does not answer"
	failText        = "store node: reset: the breaker is open because of: EOF"
	apartText       = "store node: refused: no route"
)

func newTestBreaker(states *[]string) *Breaker {
	return NewBreaker(store, "node", BreakerConfig{
		AtOnce: busy,
		Changed: func(_, state string) {
			if states != nil {
				*states = append(*states, state)
			}
		},
	})
}

// failure is a failed call.
func failure(class Class) *Error { return store.Failed(class, "node", "EOF") }

// play makes a call for each character of outcomes; an x fails.
func play(t *testing.T, b *Breaker, outcomes string) {
	t.Helper()
	for _, o := range outcomes {
		done, unsent := b.Begin()
		if unsent != nil {
			t.Fatalf("not sent within %q: %v", outcomes, unsent)
		}
		if o == 'x' {
			done(failure(Reset))
		} else {
			done(nil)
		}
	}
}

// TestBreakerRetired checks that Gone is the last reported state, even if the breaker is still used.
func TestBreakerRetired(t *testing.T) {
	t.Parallel()
	var states []string
	b := newTestBreaker(&states)
	done, _ := b.Begin()
	b.Retire()
	b.Retire()
	done(failure(busy))
	if got := strings.Join(states, " "); got != "closed gone" || !b.Open() {
		t.Errorf("states %q", got)
	}
}

// TestBreakerWithoutConnection checks that a breaker without a connection reports open once, and returns the reason to calls.
func TestBreakerWithoutConnection(t *testing.T) {
	t.Parallel()
	var states []string
	b := newTestBreaker(&states)
	why := store.Failed(Refused, "node", "no route").NotSent()
	unsent := func() *Error { return b.Admit(time.Now(), time.Second) }
	if b.Connected(); unsent() != nil {
		t.Errorf("connected: %v", unsent())
	}
	b.Disconnected(why)
	if b.Disconnected(why); unsent() != why || b.Down() != why || why.Error() != apartText || !why.Unsent {
		t.Errorf("without a connection: %v", unsent())
	}
	if b.Connected(); unsent() != nil || b.Down() != nil {
		t.Errorf("connected again: %v", unsent())
	}
	play(t, b, "xxxxx")
	b.Disconnected(why)
	if b.Connected(); unsent() == nil {
		t.Error("a connection has closed a breaker that had opened because of failures")
	}
	b.Retire()
	b.Disconnected(why)
	if got := strings.Join(states, " "); got != "closed open closed open gone" {
		t.Errorf("states %q", got)
	}
}

// TestBreakerSilent checks that a breaker is open while its server is silent, and stays open after an answer only while calls fail.
func TestBreakerSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		b := newTestBreaker(&states)
		b.Sent()
		time.Sleep(SilentAfter)
		if unsent := b.Admit(time.Now(), time.Second); unsent != nil || b.Open() {
			t.Errorf("too early: %v", unsent)
		}
		time.Sleep(SilentAfter)
		if unsent := b.Admit(time.Now(), time.Second); unsent == nil || unsent.Error() != muteText || !unsent.Unsent || !b.Open() {
			t.Errorf("silent: %v", unsent)
		}
		b.Received()
		if unsent := b.Admit(time.Now(), time.Second); unsent != nil || b.Open() {
			t.Errorf("it has answered: %v", unsent)
		}
		b.Sent()
		time.Sleep(2 * SilentAfter)
		play(t, b, "xxxxx")
		b.Received()
		if unsent := b.Admit(time.Now(), time.Second); unsent == nil || unsent.Error() != failText || !unsent.Unsent || !b.Open() {
			t.Errorf("it has answered, but calls fail: %v", unsent)
		}
		for range goodProbes {
			for b.Admit(time.Now(), time.Second) != nil {
				time.Sleep(time.Millisecond)
			}
			play(t, b, ".")
		}
		if got := strings.Join(states, " "); got != "closed open closed open half-open closed" || b.Open() {
			t.Errorf("states %s", got)
		}
	})
}

func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // no time passes here, so all calls are within the same second
		for outcomes, opens := range map[string]bool{
			"xxxx": false, "xxxx.xxxx": false, "xxxxx": true, "....xxxxx": true,
			"x.x.x.x.x.x.x.x.x.": false, ".x.x.x.x.x.x.x.x.x.x": true, "..x..x..x..x..x..x..x..x": false,
		} {
			b := newTestBreaker(nil)
			play(t, b, outcomes)
			if got := b.Admit(time.Now(), time.Second) != nil; got != opens || b.Open() != opens {
				t.Errorf("after %q open is %t", outcomes, got)
			}
		}
		b := newTestBreaker(nil)
		done, _ := b.Begin()
		done(failure(busy))
		if b.Admit(time.Now(), time.Second) == nil {
			t.Error("a failure that opens at once did not")
		}
	})
}

// TestBreakerProbes follows a breaker from open to closed.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		b := newTestBreaker(&states)
		play(t, b, "xxxxx")
		if _, unsent := b.Begin(); unsent == nil || unsent.Error() != failText || !unsent.Unsent {
			t.Fatalf("an open breaker let a call through: %v", unsent)
		}
		begun := time.Now()
		for b.Admit(time.Now(), time.Second) != nil {
			time.Sleep(time.Millisecond)
		}
		if after := time.Since(begun); after < 200*time.Millisecond || after > 301*time.Millisecond {
			t.Errorf("a probe after %v, want 200 to 300 ms", after)
		}
		if b.Admit(time.Now(), time.Second) == nil {
			t.Error("two probes at once")
		}
		play(t, b, ".")
		if b.Admit(time.Now(), time.Second) != nil {
			t.Error("no second probe after a good one")
		}
		play(t, b, ".")
		if got := strings.Join(states, " "); got != "closed open half-open closed" {
			t.Errorf("states %s", got)
		}
	})
}

// TestBreakerForgetsAProbe checks that a probe without an outcome blocks the next one for the length of its budget.
func TestBreakerForgetsAProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newTestBreaker(nil)
		play(t, b, "xxxxx")
		time.Sleep(time.Second)
		if b.Admit(time.Now(), time.Second) != nil {
			t.Fatal("no probe after a second")
		}
		time.Sleep(time.Second + 1)
		if b.Admit(time.Now(), time.Second) != nil {
			t.Error("no probe after the budget of the last")
		}
	})
}
