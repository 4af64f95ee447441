package remote

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failure is an error of a store of tests.
type failure struct{ atOnce, kept, mute bool }

func newTestBreaker(states *[]string) *Breaker[failure] {
	return NewBreaker("node", How[failure]{
		Kept:   func(f *failure) *failure { return &failure{atOnce: f.atOnce, kept: true} },
		AtOnce: func(f *failure) bool { return f.atOnce },
		Mute:   &failure{mute: true},
		Changed: func(_, state string) {
			if states != nil {
				*states = append(*states, state)
			}
		},
	})
}

// play makes a call for each mark, an x of which fails.
func play(t *testing.T, b *Breaker[failure], outcomes string) {
	t.Helper()
	for _, o := range outcomes {
		done, refused := b.Begin()
		if refused != nil {
			t.Fatalf("refused within %q: %v", outcomes, refused)
		}
		if o == 'x' {
			done(new(failure))
		} else {
			done(nil)
		}
	}
}

// TestBreakerRetired: the last thing reported of a breaker is that it is gone, whatever happens to it afterwards.
func TestBreakerRetired(t *testing.T) {
	t.Parallel()
	var states []string
	b := newTestBreaker(&states)
	done, _ := b.Begin()
	b.Retire()
	b.Retire()
	done(&failure{atOnce: true})
	if got := strings.Join(states, " "); got != Gone || !b.Shut() {
		t.Errorf("states %q", got)
	}
}

// TestBreakerWithoutConnection: while there is no connection the state is told as open, once.
func TestBreakerWithoutConnection(t *testing.T) {
	t.Parallel()
	var states []string
	b := newTestBreaker(&states)
	b.Connected(true)
	b.Connected(false)
	b.Connected(false)
	b.Connected(true)
	play(t, b, "xxxxx")
	b.Connected(false)
	b.Connected(true)
	b.Retire()
	b.Connected(false)
	if got := strings.Join(states, " "); got != "open closed open gone" {
		t.Errorf("states %q", got)
	}
}

// TestBreakerSilent: a breaker is open while its server is silent, until the first word; then also while calls fail.
func TestBreakerSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		b := newTestBreaker(&states)
		b.Silence.Ask()
		time.Sleep(SilentAfter)
		if refused := b.Admit(time.Now(), time.Second); refused != nil || b.Open() {
			t.Errorf("too early: %v", refused)
		}
		time.Sleep(SilentAfter)
		if refused := b.Admit(time.Now(), time.Second); refused == nil || !refused.mute || !b.Open() || b.Shut() {
			t.Errorf("silent: %v", refused)
		}
		b.Silence.Hear()
		if refused := b.Admit(time.Now(), time.Second); refused != nil || b.Open() {
			t.Errorf("it has answered: %v", refused)
		}
		b.Silence.Ask()
		time.Sleep(2 * SilentAfter)
		play(t, b, "xxxxx")
		b.Silence.Hear()
		if refused := b.Admit(time.Now(), time.Second); refused == nil || !refused.kept || !b.Open() {
			t.Errorf("it has answered, but calls fail: %v", refused)
		}
		for range goodProbes {
			for b.Admit(time.Now(), time.Second) != nil {
				time.Sleep(time.Millisecond)
			}
			play(t, b, ".")
		}
		if got := strings.Join(states, " "); got != "open closed open half-open closed" || b.Open() {
			t.Errorf("states %s", got)
		}
	})
}

func TestBreakerOpens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which no time passes: a second is what counts
		for outcomes, opens := range map[string]bool{
			"xxxx": false, "xxxx.xxxx": false, "xxxxx": true, "....xxxxx": true,
			"x.x.x.x.x.x.x.x.x.": false, ".x.x.x.x.x.x.x.x.x.x": true, "..x..x..x..x..x..x..x..x": false,
		} {
			b := newTestBreaker(nil)
			play(t, b, outcomes)
			if got := b.Admit(time.Now(), time.Second) != nil; got != opens || b.Shut() != opens {
				t.Errorf("after %q open is %t", outcomes, got)
			}
		}
		b := newTestBreaker(nil)
		done, _ := b.Begin()
		done(&failure{atOnce: true})
		if b.Admit(time.Now(), time.Second) == nil {
			t.Error("a failure that opens at once did not")
		}
	})
}

// TestBreakerProbes follows an open breaker until it is closed.
func TestBreakerProbes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var states []string
		b := newTestBreaker(&states)
		play(t, b, "xxxxx")
		if _, refused := b.Begin(); refused == nil || !refused.kept {
			t.Fatalf("an open breaker let a call through: %v", refused)
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
		if got := strings.Join(states, " "); got != "open half-open closed" {
			t.Errorf("states %s", got)
		}
	})
}

// TestBreakerForgetsAProbe: a probe without an outcome delays the next one for as long as its budget.
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
