package remote

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSilence checks that a server is silent if it has answered nothing since a command was sent 50 ms ago, plus a margin in case this
// process was suspended. An answer ends the silence.
func TestSilence(t *testing.T) {
	t.Parallel()
	const never = -1
	for name, c := range map[string]struct {
		play func(s *Breaker)
		want time.Duration // since the start
	}{
		"never_asked":   {func(*Breaker) {}, never},
		"one_command":   {func(s *Breaker) { s.Sent() }, SilentAfter + lateFor},
		"many_commands": {func(s *Breaker) { asks(s, 40, time.Millisecond) }, SilentAfter + lateFor},
		"answered":      {func(s *Breaker) { s.Sent(); time.Sleep(SilentAfter); s.Received() }, never},
		"answered_late": {func(s *Breaker) { s.Sent(); time.Sleep(SilentAfter + lateFor - time.Nanosecond); s.Received() }, never},
		"answered_others": {func(s *Breaker) {
			for range 100 {
				asks(s, 4, 10*time.Millisecond)
				s.Received()
				time.Sleep(time.Millisecond)
			}
		}, never},
		"answered_once": {func(s *Breaker) {
			s.Sent()
			time.Sleep(30 * time.Millisecond)
			s.Received()
			time.Sleep(10 * time.Millisecond)
			asks(s, 10, time.Millisecond)
		}, 40*time.Millisecond + SilentAfter + lateFor},
		"asked_again": {func(s *Breaker) {
			s.Sent()
			s.Received()
			time.Sleep(time.Second)
			s.Sent()
		}, time.Second + SilentAfter + lateFor},
		"broken":           {func(s *Breaker) { s.Sent(); time.Sleep(SilentAfter); s.Forget() }, never},
		"broken_and_asked": {func(s *Breaker) { s.Sent(); time.Sleep(SilentAfter); s.Forget(); s.Sent() }, 2*SilentAfter + lateFor},
	} {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			var told []string
			s := NewBreaker(store, "node", BreakerConfig{
				Changed:  func(_, state string) { told = append(told, fmt.Sprint(state, " ", time.Since(begun))) },
				Silenced: func() { told = append(told, "silent") },
			})
			c.play(s)
			time.Sleep(time.Minute)
			synctest.Wait()
			if got := s.Silent(); got != (c.want != never) {
				t.Errorf("%s: silent is %t", name, got)
			}
			s.Forget()
			if got := s.Silent(); got != (c.want != never) {
				t.Errorf("%s: silent is %t after a connection broke", name, got)
			}
			s.Received()
			if s.Silent() || s.Age() != 0 {
				t.Errorf("%s: silent is %t, and a command %v old, after a word", name, s.Silent(), s.Age())
			}
			want := "closed 0s"
			if c.want != never {
				want += fmt.Sprintf(", open %v, silent, closed %v", c.want, time.Since(begun))
			}
			if got := strings.Join(told, ", "); got != want {
				t.Errorf("%s: told %q, want %q", name, got, want)
			}
		})
	}
}

// asks sends n commands, and waits after each.
func asks(s *Breaker, n int, wait time.Duration) {
	for range n {
		s.Sent()
		time.Sleep(wait)
	}
}

// TestSilenceAge checks that the age is that of the oldest unanswered command.
func TestSilenceAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newTestBreaker(nil)
		expect := func(want time.Duration, when string) {
			t.Helper()
			if got := s.Age(); got != want {
				t.Errorf("%s: the age is %v, want %v", when, got, want)
			}
		}
		time.Sleep(time.Second)
		expect(0, "never asked")
		asks(s, 3, time.Second)
		expect(3*time.Second, "asked three times")
		s.Received()
		time.Sleep(time.Second)
		expect(0, "answered")
		s.Sent()
		time.Sleep(time.Second)
		expect(time.Second, "asked again")
	})
}
