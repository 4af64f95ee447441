package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestClassOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want Class
	}{
		{context.DeadlineExceeded, Timeout},
		{fmt.Errorf("reading: %w", syscall.ETIMEDOUT), Timeout},
		{&net.DNSError{IsTimeout: true}, Timeout},
		{&net.DNSError{Err: "no such host", IsNotFound: true}, Refused},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, Refused},
		{fmt.Errorf("writing: %w", syscall.EPIPE), Reset},
		{io.EOF, Reset},
		{errors.New("what is this"), Other},
	} {
		if got := ClassOf(c.err); got != c.want {
			t.Errorf("%v is of class %s, want %s", c.err, got, c.want)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`unexpected line: "shop_user_ann"`: "unexpected line: …",
		"line\nbreak":                      `line\nbreak`,
		strings.Repeat("é", 150):           strings.Repeat("é", 100) + "…",
		"dial tcp 10.0.0.1:1: no route":    "dial tcp 10.0.0.1:1: no route",
	} {
		if got := Clean(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestBackoff checks that delays grow, up to about a second, and start over after a successful attempt.
func TestBackoff(t *testing.T) {
	t.Parallel()
	var b Backoff
	for range 2 {
		for i := range 100 {
			if w := b.Next(); w <= 0 || w > lastBackoff+firstBackoff || i == 0 && w > firstBackoff+firstBackoff {
				t.Fatalf("wait %d is %v", i, w)
			}
		}
		b.Reset()
	}
}

// TestBudget checks that a caller waits until 2 ms before its deadline, or 250 ms without one, unless the time-out of operations is
// shorter.
func TestBudget(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ timeout, deadline, want time.Duration }{
		{0, 0, 250 * time.Millisecond},
		{0, 20 * time.Millisecond, 18 * time.Millisecond},
		{0, 100 * time.Millisecond, 98 * time.Millisecond},
		{0, time.Minute, time.Minute - margin},
		{0, 3 * time.Millisecond, time.Millisecond},
		{0, 2 * time.Millisecond, 0},
		{50 * time.Millisecond, 0, 50 * time.Millisecond},
		{50 * time.Millisecond, 20 * time.Millisecond, 18 * time.Millisecond},
		{50 * time.Millisecond, time.Minute, 50 * time.Millisecond},
		{time.Second, 0, time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, now := t.Context(), time.Now()
			if c.deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, now.Add(c.deadline))
				defer cancel()
			}
			if got, enough := Budget(ctx, now, c.timeout); got != c.want || enough != (c.want > 0) {
				t.Errorf("time-out %v, deadline %v: it waits for %v (enough: %t), want %v", c.timeout, c.deadline, got, enough, c.want)
			}
			gone, cancel := context.WithCancel(ctx)
			cancel()
			if _, enough := Budget(gone, now, c.timeout); enough {
				t.Error("a caller that has gone has time enough")
			}
		})
	}
}

// TestErrorTexts checks that an error names its store and its server, if any, and is wrapped only once.
func TestErrorTexts(t *testing.T) {
	t.Parallel()
	e := store.Wrap("a:1", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	if got, want := e.Error(), "store a:1: refused: dial: connection refused"; got != want || e.Unsent {
		t.Errorf("%q, want %q", got, want)
	}
	if got := store.Wrap("b:2", fmt.Errorf("asking: %w", e)); got != e {
		t.Errorf("wrapped twice it is another error: %v", got)
	}
	if got, want := store.Late().Error(), "store: timeout: less than 1 ms is left before the deadline"; got != want || !store.Late().Unsent {
		t.Errorf("%q, want %q", got, want)
	}
	if n := e.NotSent(); !n.Unsent || e.Unsent || n.Error() != e.Error() {
		t.Errorf("%+v became %+v", e, n)
	}
}
