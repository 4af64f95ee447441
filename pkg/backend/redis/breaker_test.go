package redis

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// admits reports whether b lets a call through now.
func admits(b *breaker) bool {
	_, refused := b.admit(time.Now(), time.Second)
	return refused == nil && !b.open()
}

// TestBreakerSilent: callers that wait in vain open a breaker, unless they themselves may be the reason, and an answer
// closes it.
func TestBreakerSilent(t *testing.T) {
	t.Parallel()
	const wait = 18 * time.Millisecond
	late := func(b *breaker, callers int, every, waited time.Duration) {
		for range callers {
			time.Sleep(every)
			_ = b.complain(time.Now(), waited, &Error{Class: ClassTimeout, text: "test"})
		}
	}
	for name, c := range map[string]struct {
		play func(b *breaker)
		open bool
	}{
		"five": {func(b *breaker) { late(b, 5, time.Millisecond, wait) }, true},
		"four": {func(b *breaker) { late(b, 4, time.Millisecond, wait) }, false},
		"many_at_once": {func(b *breaker) { // as when this process has stood still
			late(b, 100, 0, wait)
		}, false},
		"many_at_once_and_again": {func(b *breaker) {
			late(b, 100, 0, wait)
			late(b, 1, lateFor, wait)
		}, true},
		"answered_in_between": {func(b *breaker) {
			late(b, 4, time.Millisecond, wait)
			b.hear(time.Now())
			late(b, 100, wait/100, wait)
		}, false},
		"answered_before": {func(b *breaker) {
			late(b, 4, time.Millisecond, wait)
			b.hear(time.Now())
			time.Sleep(wait)
			late(b, 4, time.Millisecond, wait)
		}, false},
		"impatient": {func(b *breaker) { late(b, 100, time.Millisecond, 4*time.Millisecond) }, false},
		"less_patient_than_most": {func(b *breaker) {
			for range 50 {
				b.waits(50 * time.Millisecond)
			}
			late(b, 100, time.Millisecond, wait)
		}, false},
		"as_patient_as_most": {func(b *breaker) {
			for range 50 {
				b.waits(wait)
			}
			late(b, 5, time.Millisecond, wait)
		}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var states []string
			b := newBreaker("node", func(_, state string) { states = append(states, state) })
			time.Sleep(time.Second)
			b.hear(time.Now())
			time.Sleep(wait)
			c.play(b)
			if got := !admits(b); got != c.open {
				t.Errorf("%s: open is %t", name, got)
			}
			b.hear(time.Now())
			if !admits(b) {
				t.Errorf("%s: it is not closed by an answer", name)
			}
			if got := strings.Join(states, " "); c.open && got != "open closed" || !c.open && got != "" {
				t.Errorf("%s: states %s", name, got)
			}
		})
	}
}

// TestBreakerBusy: a script that runs too long opens a breaker at once; the states that the observer is told, for this
// and for silence, are consistent.
func TestBreakerBusy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		b := newBreaker("node", func(_, state string) { states = append(states, state) })
		batch := func(e *Error) {
			done, refused := b.batches.Begin()
			if refused != nil {
				t.Fatalf("refused: %v", refused)
			}
			done(e)
		}
		time.Sleep(time.Second)
		for range complaints {
			time.Sleep(time.Millisecond)
			_ = b.complain(time.Now(), 18*time.Millisecond, &Error{Class: ClassTimeout, text: "test"})
		}
		batch(&Error{Class: ClassBusy, text: "test"})
		b.hear(time.Now())
		if _, refused := b.admit(time.Now(), time.Second); refused == nil || refused.Class != ClassBusy || !refused.Unsent {
			t.Errorf("BUSY did not open the breaker at once: %v", refused)
		}
		time.Sleep(time.Second)
		for range 2 {
			if probe, refused := b.admit(time.Now(), time.Second); !probe {
				t.Errorf("no probe: %v", refused)
			}
			batch(nil)
		}
		if got := strings.Join(states, " "); got != "open half-open closed" || !admits(b) {
			t.Errorf("states %s", got)
		}
	})
}

// TestBreakerQuiet: a node is quiet if it was asked and has not answered, but not if it was not asked.
func TestBreakerQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker("node", nil)
		expect := func(quiet bool, when string) {
			t.Helper()
			if got := b.quiet(time.Now()); got != quiet {
				t.Errorf("%s: quiet is %t", when, got)
			}
		}
		time.Sleep(time.Second)
		expect(false, "never asked")
		b.ask(time.Now())
		expect(false, "just asked")
		time.Sleep(quietFor / 2)
		b.ask(time.Now())
		time.Sleep(quietFor)
		expect(true, "not answered")
		b.hear(time.Now())
		expect(false, "answered")
		time.Sleep(time.Second)
		expect(false, "answered long ago")
		b.ask(time.Now())
		expect(false, "asked again")
	})
}
