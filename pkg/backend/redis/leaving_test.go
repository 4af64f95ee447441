package redis

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// threeTakes returns takes of two keys.
func threeTakes() []backend.Op {
	ops := make([]backend.Op, 3)
	for i := range ops {
		ops[i] = backend.Op{Key: keyOf(1 + i%2), Limits: lasting(1e6), Take: engine.Take{Cost: 1, Count: 1}}
	}
	return ops
}

// untouched checks that the counters of these keys are unused, and takes one hit of each.
func untouched(t *testing.T, b *Backend) {
	t.Helper()
	for key := range 2 {
		var op backend.Op
		testkit.Eventually(t, "a decision", func() bool { op = one(b, 1+key); return op.Err == nil })
		if op.Decision.Left != 1e6 {
			t.Errorf("%d are left of key %d, want all: what was given up has been sent", op.Decision.Left, 1+key)
		}
	}
}

// TestLeaving checks that ops of callers that leave before their batch is formed are not sent, and that the caller's memory is not used
// afterwards.
func TestLeaving(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := opened(t, Config{URL: s.Addr(), OpTimeout: slow})
	var wg sync.WaitGroup
	for range 50 { // before writers run, so that none is free
		wg.Go(func() {
			ops := threeTakes()
			ctx, cancel := context.WithTimeout(t.Context(), usual)
			defer cancel()
			b.Apply(ctx, ops)
			for i := range ops {
				if class(ops[i]) != remote.Timeout {
					t.Errorf("op %d: %v, want a time-out", i, ops[i].Err)
				}
				ops[i].Limits[0] = engine.Limit{} // the race detector finds readers
				ops[i] = backend.Op{}
			}
		})
	}
	wg.Wait()
	if n := waiting(b); n > 0 {
		t.Errorf("%d of those who left are still queued", n)
	}
	start(t, b)
	untouched(t, b)
}

// TestCancelled checks that a caller that is cancelled while its ops are queued returns soon, and that they are not sent.
func TestCancelled(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := opened(t, Config{URL: s.Addr(), OpTimeout: slow})
	ctx, cancel := context.WithCancel(t.Context())
	ops := threeTakes()
	var wg sync.WaitGroup
	wg.Go(func() { b.Apply(ctx, ops) })
	testkit.Eventually(t, "all in the queue", func() bool { return waiting(b) == len(ops) })
	cancelled := time.Now()
	cancel()
	wg.Wait()
	if took := time.Since(cancelled); took > slow/10 {
		t.Errorf("the caller left %v after it had been cancelled, want about %v", took, cancelPoll)
	}
	for i := range ops {
		if e, failed := ops[i].Err.(*remote.Error); !failed || e.Class != remote.Timeout || !e.Unsent { //nolint:errorlint // it is never wrapped
			t.Errorf("op %d: %v, want a time-out that was not sent", i, ops[i].Err)
		}
	}
	if n := waiting(b); n > 0 {
		t.Errorf("%d of the ops are still queued", n)
	}
	start(t, b)
	untouched(t, b)
}

// TestCutWhileOpening: the goroutine that closes connections may close the new one too, which is not a failure of the call.
func TestCutWhileOpening(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr(), OpTimeout: slow, PoolSize: 1}, true)
	for range 5 {
		var opened atomic.Int32
		p.Replies(func(to io.Writer, from io.Reader) {
			if opened.Add(1) > 1 {
				_, _ = io.Copy(to, from)
			}
		})
		p.Cut()
		op := one(b, 1)
		if opened.Load() == 0 { // sent on the old connection, just before its end was noticed
			op = one(b, 1)
		}
		if op.Err != nil {
			t.Errorf("a call: %v", op.Err)
		}
		if n := opened.Load(); n < 2 {
			t.Errorf("%d connections were opened, want one that was cut off and others", n)
		}
	}
}
