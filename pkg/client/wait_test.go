package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/client"
)

// TestWaitTurn tests that callers of a queue proceed one after the other, at the rate of the rule.
func TestWaitTurn(t *testing.T) {
	t.Parallel()
	l := shared(t).Limiter(client.Pairs("mail", "turn"))
	begin := time.Now()
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(begin); took < 4*50*time.Millisecond-5*time.Millisecond { // the times of turns are rounded to milliseconds
		t.Errorf("5 turns, of which one comes each 50 ms, took %v", took)
	}
}

// TestWaitAdmitted tests that WaitN retries other algorithms until they admit.
func TestWaitAdmitted(t *testing.T) {
	t.Parallel()
	l := shared(t).Limiter(client.Pairs("quick", "a"))
	begin := time.Now()
	for range 4 {
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took < 290*time.Millisecond {
		t.Errorf("4 hits, at 10 per second and no burst, took %v", took)
	}
}

// TestWaitDeadline tests that a turn after the deadline is neither taken nor waited for.
func TestWaitDeadline(t *testing.T) {
	t.Parallel()
	c := fresh(t)
	letter, user := c.Limiter(client.Pairs("letter", "a")), c.Limiter(client.Pairs("user", "deadline"))
	if err := letter.Wait(t.Context()); err != nil || !user.AllowN(t.Context(), 3) {
		t.Fatal(err)
	}
	for name, l := range map[string]*client.Limiter{"a queue": letter, "a log": user} {
		before, err := l.Peek(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		begin := time.Now()
		if err := l.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("%s: waiting for longer than there is time ends with %v after %v", name, err, time.Since(begin))
		}
		cancel()
		if after, err := l.Peek(t.Context()); err != nil || after.Remaining != before.Remaining {
			t.Errorf("%s: waiting in vain spent something: %+v, %v", name, after, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := letter.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that leaves while it waits: %v", err)
	}
}

// TestWaitNever tests a limit of 0, more hits than can ever be admitted, and a server without wait times.
func TestWaitNever(t *testing.T) {
	t.Parallel()
	if err := shared(t).Limiter(client.Pairs("never", "a")).Wait(t.Context()); !errors.Is(err, client.ErrOverLimit) {
		t.Errorf("a limit of 0: %v", err)
	}
	many := shared(t).Limiter(client.Pairs("user", "never"))
	if err := many.WaitN(t.Context(), 1000); !errors.Is(err, client.ErrOverLimit) {
		t.Errorf("more hits than ever pass: %v", err)
	}
	if r, err := many.Take(t.Context(), 1000); err != nil || r.RetryAfter != client.Never || r.ResetAfter <= 0 {
		t.Errorf("more hits than ever pass: %+v, %v", r, err)
	}
	mute := start(t, "LIMIT_RESPONSE_HEADERS_ENABLED=true")
	l := connect(t, mute.At["GRPC"], client.Config{FailOpen: true}).Limiter(client.Pairs("mail", "mute"))
	if err := l.Wait(t.Context()); !errors.Is(err, client.ErrNoTurn) {
		t.Errorf("a server without DECISION_METADATA: %v", err)
	}
	if err := connect(t, mute.At["GRPC"], client.Config{}).Limiter(client.Pairs("nobody", "limits")).Wait(t.Context()); err != nil {
		t.Errorf("nothing to wait for: %v", err)
	}
	if r, err := l.Take(t.Context(), 1); err != nil || r.Rule != "" || r.ResetAfter != time.Second {
		t.Errorf("without metadata: %+v, %v", r, err)
	}
}
