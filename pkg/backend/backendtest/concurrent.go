package backendtest

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// callers is the number of goroutines that call a backend concurrently.
const callers = 32

// testConcurrent takes from one counter in many goroutines while the time stands still.
func testConcurrent(t *testing.T, h Harness) {
	s := open(t, h)
	for _, l := range s.eachAlgorithm() {
		l.Hits = 1000
		if l.Burst > 0 {
			l.Burst, l.Initial = 1000, min(l.Initial*100, 1000)
		}
		name := l.Algorithm.String()
		t.Run("Ladder/"+name, func(t *testing.T) { testLadder(t, s, l, h.Takes) })
		if !l.Algorithm.Queues() { // takes of a queue are not merged
			t.Run("Merged/"+name, func(t *testing.T) { testMerged(t, s, l, h.Takes) })
		}
	}
	t.Run("Row02_TenClients", func(t *testing.T) { testTenClients(t, s) })
	if s.fixed {
		return
	}
	t.Run("List", func(t *testing.T) { testConcurrentList(t, s, h.Takes) })
}

// testLadder checks that exactly the limit is admitted, and that each admitted take has a different number of hits left.
func testLadder(t *testing.T, s *subject, l engine.Limit, takes int) {
	t.Helper()
	key, limits := s.key(), engine.Limits{l}
	var mu sync.Mutex
	var rungs []uint64
	concurrently(takes, callers, func(int) {
		ops := []backend.Op{{Key: key, Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
		s.backend.Apply(t.Context(), ops)
		mu.Lock()
		defer mu.Unlock()
		if ops[0].Err != nil {
			t.Errorf("take: %v", ops[0].Err)
		}
		if ops[0].Decision.Admitted == 1 {
			rungs = append(rungs, ops[0].Decision.Left-1)
		}
	})
	slices.Sort(rungs)
	want := make([]uint64, l.Hits)
	for i := range want {
		want[i] = uint64(i)
	}
	if diff := cmp.Diff(want, rungs); diff != "" {
		t.Fatalf("what %d takes left behind (-want +got):\n%s", takes, diff)
	}
}

// testMerged checks that takes of several hits, with checks and refunds on other keys in between, admit exactly the limit.
func testMerged(t *testing.T, s *subject, l engine.Limit, takes int) {
	t.Helper()
	key, other, limits := s.key(), s.key(), engine.Limits{l}
	calls := max(takes/8, 1)
	least := (l.Hits + uint64(calls) - 1) / uint64(calls) // the minimum per call with which all calls together request the whole limit
	var sum atomic.Uint64
	concurrently(calls, callers, func(i int) {
		ops := []backend.Op{
			{Key: key, Limits: limits, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}},
			{Key: key, Limits: limits, Take: engine.Take{Cost: 1, Count: least + rand.Uint64N(8)}},
			{Key: other, Limits: limits, Mode: backend.Refund, Take: engine.Take{Cost: uint64(i), Count: 1}},
		}
		s.backend.Apply(t.Context(), ops)
		if ops[1].Err != nil {
			t.Errorf("take: %v", ops[1].Err)
		}
		sum.Add(ops[1].Decision.Admitted)
	})
	if got := sum.Load(); got != l.Hits {
		t.Fatalf("%d were admitted, want %d", got, l.Hits)
	}
}

// testTenClients sends 110 requests from ten concurrent clients to a window of 100.
func testTenClients(t *testing.T, s *subject) {
	t.Helper()
	key, limits := s.key(), engine.Limits{fixed(100, second)}
	var admitted atomic.Uint64
	concurrently(110, 10, func(int) {
		ops := []backend.Op{{Key: key, Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
		s.backend.Apply(t.Context(), ops)
		admitted.Add(ops[0].Decision.Admitted)
	})
	if got := admitted.Load(); got != 100 {
		t.Fatalf("%d were admitted, want 100", got)
	}
}

// testConcurrentList checks that both limits of a list consume exactly the admitted hits.
func testConcurrentList(t *testing.T, s *subject, takes int) {
	t.Helper()
	key, limits := s.key(), listOf(sliding(700, second, 10), bucket(2000, day, 1000))
	var admitted atomic.Uint64
	concurrently(takes, callers, func(int) {
		ops := []backend.Op{{Key: key, Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
		s.backend.Apply(t.Context(), ops)
		admitted.Add(ops[0].Decision.Admitted)
	})
	if got := admitted.Load(); got != 700 {
		t.Fatalf("%d were admitted, want 700", got)
	}
	ops := []backend.Op{{Key: key, Limits: limits[1:], Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}}}
	s.backend.Apply(t.Context(), ops)
	if got := ops[0].Decision.Left; got != 300 {
		t.Fatalf("the second limit has %d left, want 300", got)
	}
}

// concurrently calls f n times from the given number of goroutines, with a different number each time, and waits for all calls.
func concurrently(n, goroutines int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				f(int(i))
			}
		})
	}
	wg.Wait()
}
