package redis

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestWaits checks that queued operations increase the expected wait of new ones, once the time per operation is known.
func TestWaits(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := opened(t, Config{URL: s.Addr(), OpTimeout: slow, DialTimeout: slow})
	var wg sync.WaitGroup
	crowd := func() {
		for i := range 1000 {
			wg.Go(func() { one(b, i) })
		}
	}
	crowd()
	testkit.Eventually(t, "all to wait", func() bool { return waiting(b) == 1000 })
	if got, known := b.Waits()[s.Addr()]; got != 0 || !known {
		t.Errorf("before anything is known of Redis operations wait for %v", got)
	}
	start(t, b)
	wg.Wait()
	s.Stop()
	crowd()
	testkit.Eventually(t, "new operations to wait", func() bool {
		if waiting(b) > 500 {
			return b.Waits()[s.Addr()] > 0
		}
		crowd() // the writers may have sent the others already
		return false
	})
	s.Cont()
	wg.Wait()
	if got := b.Waits()[s.Addr()]; got != 0 {
		t.Errorf("with nothing ahead operations wait for %v", got)
	}
}

// TestEvenBatches checks that while one writer waits for an answer, the other one sends as soon as the queue is as long as the operations
// in progress, or the answer is late.
func TestEvenBatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		sent, queued int
		age, want    time.Duration
	}{
		{"nothing is under way", 0, 1, 0, 0},
		{"as much is", 3, 3, 0, 0},
		{"more is", 3, 2, 0, lateAfter},
		{"more is, of some time ago", 3, 1, lateAfter / 4, lateAfter - lateAfter/4},
		{"more is, and late", 3, 1, lateAfter, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := (&pool{config: &Config{PoolSize: nearWriters}, observer: &remote.Observer{}}).newNode("", nil)
				push := func(ops int) {
					for i := range ops {
						if e := n.push(&item{}, i); e != nil {
							t.Error(e)
						}
					}
				}
				push(c.sent)
				n.cut(nil)
				time.Sleep(c.age)
				begin := time.Now()
				var waited time.Duration
				go func() {
					if work, _ := n.await(n.writers[0], new(int)); work {
						waited = time.Since(begin)
					}
				}()
				synctest.Wait()
				push(c.queued)
				time.Sleep(time.Second)
				if synctest.Wait(); waited != c.want {
					t.Errorf("%d operations were sent after %v, want %v", c.queued, waited, c.want)
				}
				_, _, _ = n.cut(nil)
			})
		})
	}
}

// TestQueueTakesTurns checks that flows take turns, and that the operations of a call beyond a quantum do not delay other calls.
func TestQueueTakesTurns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		calls []string // a letter for the flow, and the number of operations
		want  string   // order in the batch: calls, and the number of operations of each in a row
	}{
		{"in order", []string{"a4", "a3"}, "0×4 1×3"},
		{"a large call waits for small ones", []string{"a40", "a8", "a8"}, "0×16 0×16 1×8 2×8 0×8"},
		{"a flow with much waits for one with little", []string{"a16", "a16", "a16", "b8"}, "0×16 3×8 1×16 2×16"},
		{"three flows", []string{"a16", "a16", "b16", "b16", "c4"}, "0×16 2×16 4×4 1×16 3×16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			q, owners := queueOf(c.calls)
			var got []string
			items := q.cut(nil, math.MaxInt, math.MaxInt)
			for i := 0; i < len(items); {
				n := 1
				for i+n < len(items) && owners[items[i+n]] == owners[items[i]] && n < quantum {
					n++
				}
				got = append(got, fmt.Sprintf("%d×%d", owners[items[i]], n))
				i += n
			}
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%v are sent as\n%s, want\n%s", c.calls, s, c.want)
			}
			if q.length.Load() != 0 || q.turn != nil || q.active != 0 {
				t.Errorf("an empty queue has length %d, and %d flows", q.length.Load(), q.active)
			}
		})
	}
}

// TestQueueCuts checks that a full batch leaves the rest in order, and that withdrawn operations are not sent.
func TestQueueCuts(t *testing.T) {
	t.Parallel()
	q, owners := queueOf([]string{"a20", "b20", "a4"})
	first := q.cut(nil, 20, math.MaxInt)
	if len(first) != 20 || q.length.Load() != 24 {
		t.Fatalf("a batch of 20 has %d, and leaves %d", len(first), q.length.Load())
	}
	for it, call := range owners {
		if call == 1 && it.list != nil {
			q.remove(it)
		}
	}
	rest := q.cut(nil, math.MaxInt, math.MaxInt)
	if slices.ContainsFunc(rest, func(it *item) bool { return owners[it] == 1 }) || q.length.Load() != 0 {
		t.Errorf("withdrawn operations are sent, or %d are left", q.length.Load())
	}
}

// TestQueueAhead checks that the estimate for a new call is at least the number of operations sent before its last one.
func TestQueueAhead(t *testing.T) {
	t.Parallel()
	for _, calls := range [][]string{
		{}, {"a16"}, {"a128"}, {"a128", "a128", "b16"}, {"a16", "b16", "c16", "d128"}, {"a1", "a1", "b300"}, {"b16", "b16", "b16", "b16"},
	} {
		for _, fresh := range []string{"a1", "a16", "a40", "z1", "z16", "z100"} {
			q, _ := queueOf(calls)
			var n int
			var flow byte
			if _, err := fmt.Sscanf(fresh, "%c%d", &flow, &n); err != nil {
				t.Fatal(err)
			}
			ahead := q.ahead(backend.Flow(flow), n)
			q, owners := queueOf(append(slices.Clone(calls), fresh))
			items, before := q.cut(nil, math.MaxInt, math.MaxInt), 0
			for i, it := range items {
				if owners[it] == len(calls) {
					before = i + 1 - n
				}
			}
			if ahead < before-2*quantum || ahead > max(4*before, 4*quantum)+4*quantum {
				t.Errorf("after %v %s has %d operations ahead of it, and estimates %d", calls, fresh, before, ahead)
			}
		}
	}
}

// queueOf returns a queue with calls such as a16, 16 operations of flow a, and the index of each item's call.
func queueOf(calls []string) (*queue, map[*item]int) {
	q, owners := new(queue), map[*item]int{}
	for i, c := range calls {
		var n int
		var flow byte
		if _, err := fmt.Sscanf(c, "%c%d", &flow, &n); err != nil {
			panic(err)
		}
		for k := range n {
			it := &item{op: backend.Op{Flow: backend.Flow(flow)}}
			owners[it] = i
			q.push(it, k)
		}
	}
	return q, owners
}
