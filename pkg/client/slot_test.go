package client_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/client"
)

// hold calls Hold and fails the test on error.
func hold(t *testing.T, l *client.Limiter, holder string) *client.Slot {
	t.Helper()
	s, err := l.Hold(t.Context(), holder)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestHold tests that no more slots are held than the rule has, with and without owners, and that releasing one frees it.
func TestHold(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), t.Context()
	for holder, d := range map[string]client.Descriptor{"run": client.Pairs("report", "daily"), "": client.Pairs("desk", "window")} {
		l := c.Limiter(d)
		one, two := hold(t, l, holder), hold(t, l, holder)
		if _, err := l.Hold(ctx, holder); !errors.Is(err, client.ErrOverLimit) {
			t.Errorf("holder %q: a third slot: %v", holder, err)
		}
		if err := errors.Join(one.Release(), one.Release()); err != nil {
			t.Error(err)
		}
		three := hold(t, l, holder)
		if _, err := l.Hold(ctx, holder); !errors.Is(err, client.ErrOverLimit) {
			t.Errorf("holder %q: a second release freed another slot: %v", holder, err)
		}
		if err := errors.Join(two.Release(), three.Release()); err != nil {
			t.Error(err)
		}
		both, err := l.HoldN(ctx, holder, 2)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Hold(ctx, holder); !errors.Is(err, client.ErrOverLimit) {
			t.Errorf("holder %q: a slot beside two held at once: %v", holder, err)
		}
		if err := both.Release(); err != nil {
			t.Error(err)
		}
		if err := hold(t, l, holder).Release(); err != nil {
			t.Error(err)
		}
	}
	for _, wrong := range []*client.Limiter{c.Limiter(), c.Limiter(client.Pairs("desk", "a"), client.Pairs("desk", "b"))} {
		if _, err := wrong.Hold(ctx, ""); err == nil {
			t.Error("holds no descriptor, or two")
		}
	}
	if err := hold(t, c.Limiter(client.Pairs("nobody", "limits")), "").Release(); err != nil {
		t.Errorf("a slot where no rule is: %v", err)
	}
}

// TestHoldNamed tests that an owner with a name holds the same slot twice, and that one release frees it.
func TestHoldNamed(t *testing.T) {
	t.Parallel()
	c := shared(t)
	mine := c.Limiter(client.Pairs("report", "named", "run", "7"))
	one, again := hold(t, mine, "run"), hold(t, mine, "run")
	other := hold(t, c.Limiter(client.Pairs("report", "named", "run", "8")), "run")
	if _, err := c.Limiter(client.Pairs("report", "named")).Hold(t.Context(), "run"); !errors.Is(err, client.ErrOverLimit) {
		t.Errorf("a third owner: %v", err)
	}
	if err := errors.Join(one.Release(), other.Release(), again.Release()); err != nil {
		t.Error(err)
	}
}

// TestHoldRenews tests that a slot with an owner outlives its window of a second, that one without an owner is lost, and that a lost slot
// is not released. On a machine that stalls for a second, the first slot may be lost too; the test then tries again.
func TestHoldRenews(t *testing.T) {
	t.Parallel()
	c, ctx := shared(t), t.Context()
	kept := false
	for round := range 10 {
		l, begin := c.Limiter(client.Pairs("brief", strconv.Itoa(round))), time.Now()
		s := hold(t, l, "run")
		testkit.Poll(testkit.Patience, func() bool { return time.Since(begin) > 1500*time.Millisecond })
		_, err := l.Hold(ctx, "run")
		if released := s.Release(); errors.Is(err, client.ErrOverLimit) && released == nil {
			kept = true
			break
		}
	}
	if !kept {
		t.Error("a slot with an owner is not renewed")
	}

	l := c.Limiter(client.Pairs("stool", "a"))
	s := hold(t, l, "")
	<-s.Lost()
	if err := s.Release(); !errors.Is(err, client.ErrLost) {
		t.Errorf("a release after the window: %v", err)
	}
}

// TestHoldLost tests that the holder learns that its slot was lost while the server was unavailable.
func TestHoldLost(t *testing.T) {
	t.Parallel()
	d := start(t)
	c := connect(t, d.At["GRPC"], client.Config{FailOpen: true})
	s := hold(t, c.Limiter(client.Pairs("brief", "lost")), "run")
	d.Kill()
	<-s.Lost()
	if err := s.Release(); !errors.Is(err, client.ErrLost) {
		t.Errorf("a release of what was lost: %v", err)
	}
	open := hold(t, c.Limiter(client.Pairs("brief", "lost")), "run") // FailOpen
	if err := open.Release(); err != nil {
		t.Errorf("a release of what no one holds: %v", err)
	}
	closed := connect(t, d.At["GRPC"], client.Config{})
	if _, err := closed.Limiter(client.Pairs("brief", "lost")).Hold(t.Context(), "run"); err == nil || errors.Is(err, client.ErrOverLimit) {
		t.Errorf("holding without a server: %v", err)
	}
}

// TestHoldAbandoned tests that a caller that leaves during the call leaves no slot behind.
func TestHoldAbandoned(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	slow := testkit.NewProxy(t, addr)
	c := connect(t, slow.Addr(), client.Config{})
	l := c.Limiter(client.Pairs("desk", "abandoned"))
	if _, err := l.Peek(t.Context()); err != nil { // opens the connection
		t.Fatal(err)
	}
	slow.Latency.Store(int64(50 * time.Millisecond))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for range 3 {
		if _, err := l.Hold(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller that has left: %v", err)
		}
	}
	if r, err := l.Peek(t.Context()); err != nil || r.Remaining != 2 {
		t.Errorf("slots are left behind: %+v, %v", r, err)
	}
}

// TestHoldUnanswered tests that a caller that leaves without an answer refunds nothing, because that would free another caller's slot.
func TestHoldUnanswered(t *testing.T) {
	t.Parallel()
	desk := client.Pairs("desk", "unanswered")
	held := shared(t).Limiter(desk)
	mine := hold(t, held, "")
	ctx, cancel := context.WithCancel(t.Context())
	away := grpc.WithUnaryInterceptor(func(ctx context.Context, method string, q, a any,
		conn *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption,
	) error {
		if ctx.Err() == nil && !q.(*rls.RateLimitRequest).GetDescriptors()[0].GetIsNegativeHits() {
			cancel()
			return status.Error(codes.Unavailable, "no server is there")
		}
		return next(ctx, method, q, a, conn, o...)
	})
	c := connect(t, addr, client.Config{FailOpen: true, Dial: []grpc.DialOption{away}})
	if _, err := c.Limiter(desk).Hold(ctx, ""); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left: %v", err)
	}
	if r, err := held.Peek(t.Context()); err != nil || r.Remaining != 1 {
		t.Errorf("a slot of someone else is free: %+v, %v", r, err)
	}
	if err := mine.Release(); err != nil {
		t.Error(err)
	}
}
