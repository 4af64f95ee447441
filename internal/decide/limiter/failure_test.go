package limiter_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

func TestG28DeadlineThatHasPassed(t *testing.T) {
	b := &counting{Backend: memory.New(memory.Config{})}
	l := limiter.New(b, stats.New(), limiter.Config{})
	load(t, l, plainRules)
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	var scratch limiter.Scratch
	_, err := l.Decide(ctx, request("shop", "user=1"), &scratch)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, limiter.ErrBackend) {
		t.Errorf("got %v", err)
	}
	if b.calls != 0 {
		t.Error("the store was asked all the same")
	}
	if _, err := l.Decide(ctx, request("shop", "none=1"), &scratch); err != nil {
		t.Errorf("what needs no store fails too: %v", err)
	}
}

// counting counts calls, some of which fail.
type counting struct {
	backend.Backend
	calls int
	fail  func(op *backend.Op) error
}

func (c *counting) Apply(ctx context.Context, ops []backend.Op) {
	c.calls++
	c.Backend.Apply(ctx, ops)
	for i := range ops {
		if c.fail != nil {
			ops[i].Err = c.fail(&ops[i])
		}
	}
}

// TestRefundThatFails checks that failed refunds do not change the verdict, and are counted.
func TestRefundThatFails(t *testing.T) {
	b := &counting{Backend: still(), fail: func(op *backend.Op) error {
		if op.Mode == backend.Refund {
			return errors.New("reset by peer")
		}
		return nil
	}}
	r := stats.New()
	l := limiter.New(b, r, limiter.Config{})
	load(t, l, strings.Replace(plainRules, "descriptors:", "charge: together\ndescriptors:", 1))
	ask := request("shop", "user=1")
	ask.Descriptors = append(ask.Descriptors, slices.Repeat(request("shop", "detailed=1").Descriptors, 2)...)
	var scratch limiter.Scratch
	v, err := l.Decide(t.Context(), ask, &scratch)
	if err != nil || !v.Over {
		t.Fatalf("%+v, error %v", v, err)
	}
	if n := r.Counter(stats.RefundErrorsTotal).Load(); n != 1 {
		t.Errorf("%d failures are counted, want 1", n)
	}
	if b.calls != 3 {
		t.Errorf("the store was asked %d times, want a look, a take and a refunding", b.calls)
	}
}

// TestOneOpThatFails checks that one failed op leaves the request without a verdict, and that the hits of the others stay consumed.
func TestOneOpThatFails(t *testing.T) {
	dead := errors.New("shard is down")
	b := &counting{Backend: still(), fail: func(op *backend.Op) error {
		if op.Limits[0].Hits == 1 {
			return dead
		}
		return nil
	}}
	l := limiter.New(b, stats.New(), limiter.Config{})
	load(t, l, plainRules)
	ask := request("shop", "user=1")
	ask.Descriptors = append(ask.Descriptors, request("shop", "detailed=1").Descriptors...)
	var scratch limiter.Scratch
	if _, err := l.Decide(t.Context(), ask, &scratch); !errors.Is(err, dead) || !errors.Is(err, limiter.ErrBackend) {
		t.Fatalf("got %v", err)
	}
	c, err := l.Peek(t.Context(), "shop", entries("user=1"))
	if err != nil || c.Decision.Left != 999 {
		t.Errorf("left is %d (%v), want 999", c.Decision.Left, err)
	}
}

// TestOneOpThatFailsReleasesTheOthers checks that a request without a verdict, because the backend failed for one counter, leaves no
// reservation on the others.
func TestOneOpThatFailsReleasesTheOthers(t *testing.T) {
	for _, charge := range []string{"each", "together"} {
		failing := false
		b := &counting{Backend: still()}
		b.fail = func(op *backend.Op) error {
			if failing && op.Reserve == nil && op.Mode == backend.Take {
				return errors.New("reset by peer")
			}
			return nil
		}
		sealer := new(limiter.Sealer)
		sealer.SetKeys([]byte("a key of 32 characters, or a few more"))
		l := limiter.New(b, stats.New(), limiter.Config{Reservations: sealer})
		load(t, l, `domain: llm
charge: `+charge+`
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 100, reserve: {estimate: 40}}}
- {key: other, rate_limit: {unit: hour, requests_per_unit: 100}}
`)
		failing = true
		ask := request("llm", "user=ann")
		ask.Descriptors = append(ask.Descriptors, request("llm", "other=ann").Descriptors...)
		var scratch limiter.Scratch
		if _, err := l.Decide(t.Context(), ask, &scratch); !errors.Is(err, limiter.ErrBackend) {
			t.Fatalf("charge: %s: error %v, want that of the store", charge, err)
		}
		failing = false
		c, err := l.Peek(t.Context(), "llm", request("llm", "user=ann").Descriptors[0].Entries)
		if err != nil || c.Decision.Left != 100 || c.Decision.Reserved != 0 {
			t.Errorf("charge: %s: %d are left and %d reserved, error %v, want 100 and 0", charge, c.Decision.Left, c.Decision.Reserved, err)
		}
	}
}
