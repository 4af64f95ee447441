package memcached

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestCountsBeyondAnyLimit checks that counters exceed an int32, saturate at their maximum, and then reject.
func TestCountsBeyondAnyLimit(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: slow, Now: at(7200)}, true)
	huge := opOn("huge")
	huge.Limits, huge.Take.Cost = perHour(math.MaxUint32), math.MaxUint32
	if op := apply(b, huge); op.Decision.Admitted != 1 || s.Send("get huge_7200") != "VALUE huge_7200 0 10\n4294967295\nEND" {
		t.Errorf("a take of all: %+v, %v; %q is there", op.Decision, op.Err, s.Send("get huge_7200"))
	}
	if op := one(b, "huge"); op.Decision.Left != 0 || op.Decision.Admitted != 0 {
		t.Errorf("beyond all: %+v, %v", op.Decision, op.Err)
	}
	for _, there := range []string{"9007199254740990", "9007199254740991", "9223372036854775807", "18446744073709551615"} {
		for _, cost := range []uint64{1, math.MaxUint64} {
			s.Send("set top_7200 0 0 " + fmt.Sprint(len(there)) + "\n" + there)
			for range 3 {
				op := opOn("top")
				op.Take.Cost = cost
				if op = apply(b, op); op.Err != nil || op.Decision.Admitted != 0 || op.Decision.Left != 0 || op.Decision.RetryAfter == 0 {
					t.Errorf("at %s, a take of %d: %+v, %v", there, cost, op.Decision, op.Err)
				}
			}
		}
	}
}

// TestGivingBack: memcached's decr pads numbers that lose digits with spaces, stops at zero, and creates nothing.
func TestGivingBack(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: slow, Now: at(7200)}, true)
	s.Send("flush_all")
	give := opOn("user")
	give.Mode, give.Limits, give.Take.Cost = backend.Refund, perHour(100), 3
	if op := apply(b, give); op.Err != nil || op.Decision.Admitted != 1 || op.Decision.Left != 100 || len(s.Items()) != 0 {
		t.Errorf("nothing was there: %+v, %v; %v", op.Decision, op.Err, s.Items())
	}
	take, look := opOn("user"), opOn("user")
	take.Limits, take.Take.Cost, look.Limits, look.Mode = perHour(100), 11, perHour(100), backend.Peek
	apply(b, take)
	if op := apply(b, give); op.Err != nil || op.Decision.Left != 92 {
		t.Errorf("3 of 11: %+v, %v", op.Decision, op.Err)
	}
	if got := s.Send("get user_7200"); got != "VALUE user_7200 0 2\n8 \nEND" {
		t.Errorf("what is stored is %q, want it with a blank", got)
	}
	if op := apply(b, look); op.Err != nil || op.Decision.Left != 92 {
		t.Errorf("a look: %+v, %v", op.Decision, op.Err)
	}
	give.Take.Cost = 50
	if op := apply(b, give); op.Err != nil || op.Decision.Left != 100 {
		t.Errorf("50 of 8: %+v, %v", op.Decision, op.Err)
	}
}

// TestForeignValue checks that a counter that is not a number fails only its own op, in any mode.
func TestForeignValue(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: slow, Now: at(7200)}, true)
	s.Send("set bad_7200 0 0 8\nill will")
	for _, mode := range []backend.Mode{backend.Take, backend.Peek, backend.Refund} {
		for range 12 { // if these were server failures, the breaker would open
			var ops []backend.Op
			for _, name := range []string{"a", "bad", "b", "c", "d", "e", "f", "g"} {
				op := opOn(name)
				op.Mode = mode
				ops = append(ops, op)
			}
			b.Apply(t.Context(), ops)
			for i := range ops {
				if got, bad := ops[i].Err, i == 1; (got != nil) != bad || bad && (class(ops[i]) != remote.Other || strings.Contains(got.Error(), "ill")) {
					t.Fatalf("mode %d, op %d: %v", mode, i, got)
				}
			}
		}
	}
}

// TestLeases checks that hits requested in advance are granted as far as available, even to many concurrent callers, and that only
// granted hits are counted.
func TestLeases(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow, Now: at(7200)}, true)
	var admitted atomic.Uint64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				op := opOn("hot")
				op.Limits, op.Take = perHour(5000), engine.Take{Cost: 2, Count: 0, Extra: 7}
				op = apply(b, op)
				if op.Err != nil {
					t.Error(op.Err)
				}
				admitted.Add(2 * op.Decision.Admitted)
			}
		})
	}
	wg.Wait()
	look := opOn("hot")
	look.Mode, look.Limits = backend.Peek, perHour(5000)
	if left := apply(b, look).Decision.Left; admitted.Load() > 5000 || left != 5000-admitted.Load() {
		t.Errorf("%d were granted of 5000, and %d are left", admitted.Load(), left)
	}
}
