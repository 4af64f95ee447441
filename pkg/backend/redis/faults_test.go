package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// usual is Envoy's timeout.
const usual = 20 * time.Millisecond

// settled waits until the number of goroutines has fallen to before.
func settled(t *testing.T, before int) {
	t.Helper()
	testkit.Eventually(t, "goroutines to end", func() bool { return runtime.NumGoroutine() <= before+10 })
}

func TestF01_DownAtStart(t *testing.T) {
	s := redistest.Start(t)
	s.Kill()
	b := run(t, Config{URL: s.Addr(), DialTimeout: slow}, false)
	testkit.Eventually(t, "the first failure", func() bool { return class(oneIn(b, 1, usual)) == remote.Refused })
	took := make([]time.Duration, 100)
	for i := range took {
		begun := time.Now()
		if c := class(one(b, 1)); c != remote.Refused {
			t.Fatalf("an op with Redis down: class %q, want refused", c)
		}
		took[i] = time.Since(begun)
	}
	slices.Sort(took)
	figure(t, "a rejection", took[len(took)/2], time.Millisecond)
	s.Restart()
	figure(t, "the first exact decision", testkit.Eventually(t, "a decision", func() bool { return oneIn(b, 1, usual).Err == nil }), time.Second)
}

// ride makes 1,000 calls per second during a fault that begins with cause and ends with cure, and prints the results. B10 and B12 of make
// chaos check the times of the answers.
func ride(t *testing.T, b *Backend, lasts time.Duration, cause, cure func()) *load {
	t.Helper()
	before := runtime.NumGoroutine()
	l := newLoad(b, 1000, usual)
	l.healthy(t)
	begun := time.Now()
	cause()
	time.Sleep(lasts)
	end := time.Now()
	cure()
	cured := time.Now()
	testkit.Eventually(t, "a decision", func() bool { return oneIn(b, 1, usual).Err == nil })
	l.answered(t, 100)
	l.end()
	figure(t, "p99 while it lasted", p99(l.between(begun, end)), 25*time.Millisecond)
	figure(t, "recovery", recovery(l.answers, cured), time.Second)
	if l.peak > before+1100 {
		t.Errorf("%d goroutines, from %d", l.peak, before)
	}
	settled(t, before)
	return l
}

func TestF02_Killed(t *testing.T) {
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr()}, true)
	l := ride(t, b, time.Second, s.Kill, s.Restart)
	for c := range failed(l.answers) {
		if c != remote.Refused && c != remote.Reset && c != remote.Timeout {
			t.Errorf("class %q, want refused, reset or timeout", c)
		}
	}
}

func TestF03_RestartedEmpty(t *testing.T) {
	t.Parallel()
	const limit = 50
	var e events
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow, Observer: remote.Observer{Event: e.observe}}, true)
	if n := e.count(EventDataChanged); n != 0 {
		t.Fatalf("%d times another data set before the restart", n)
	}
	admitted := func() (n uint64) {
		t.Helper()
		for _, limits := range []engine.Limits{lasting(limit), {{Algorithm: engine.TokenBucket, Hits: limit, Window: 86400e6, Burst: limit, Initial: limit}}} {
			for range 2 * limit {
				ops := []backend.Op{{Key: keyOf(len(limits[0].Algorithm.String())), Limits: limits, Take: engine.Take{Cost: 1, Count: 1}}}
				b.Apply(t.Context(), ops)
				n += ops[0].Decision.Admitted
			}
		}
		return n
	}
	if n := admitted(); n > 2*limit || n < limit { // an answer may be too late
		t.Errorf("%d were admitted of a window and a bucket of %d", n, limit)
	}
	s.Restart()
	testkit.Eventually(t, "the event", func() bool { return e.count(EventDataChanged) > 0 })
	testkit.Eventually(t, "a decision", func() bool { return one(b, 1).Err == nil })
	extra := admitted()
	t.Logf("%d more were admitted after the counters were gone", extra)
	if extra > 2*limit {
		t.Errorf("%d more were admitted, want at most %d, once", extra, 2*limit)
	}
}

func TestF04_Slow(t *testing.T) {
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr()}, true)
	memory := resident(t)
	ride(t, b, 1500*time.Millisecond, func() { p.Latency.Store(int64(time.Second)) }, func() { p.Latency.Store(0) })
	if grown := resident(t) - memory; grown > 50<<20 {
		t.Errorf("memory grew by %d MB, want at most 50", grown>>20)
	}
}

// resident returns the memory of this process in bytes.
func resident(t *testing.T) int {
	t.Helper()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(statm), &size, &pages); err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// TestF04_SlowerThanCallers: Redis answers within its own timeout, but after all of its callers have left.
func TestF04_SlowerThanCallers(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	var mu sync.Mutex
	states := map[string]bool{}
	b := run(t, Config{URL: p.Addr(), OpTimeout: 500 * time.Millisecond, Observer: remote.Observer{Breaker: func(_, state string) {
		mu.Lock()
		defer mu.Unlock()
		states[state] = true
	}}}, true)
	p.Latency.Store(int64(50 * time.Millisecond))
	testkit.Eventually(t, "the breaker to open", func() bool {
		oneIn(b, 1, usual)
		mu.Lock()
		defer mu.Unlock()
		return states["open"]
	})
}

func TestF05_Stopped(t *testing.T) {
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr()}, true)
	l := ride(t, b, 1500*time.Millisecond, s.Stop, s.Cont)
	// Callers that wait for most of their time are those that detect the silence of Redis, and those sent before.
	waited := 0
	for _, a := range l.answers {
		if a.class != "" && a.took > usual/2 {
			waited++
		}
	}
	t.Logf("%d of %d calls failed, %d of them after half of their time", failures(l.answers), len(l.answers), waited)
	if waited > 250 { // about forty; without the breaker, most of them
		t.Errorf("%d callers waited for more than half of their time", waited)
	}
}

func TestF05_Blackhole(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr()}, true)
	p.Silent.Store(true)
	begun := time.Now()
	for range 5 {
		if c := class(oneIn(b, 1, slow)); c == "" { // the patience of callers does not matter here
			t.Fatal("an op was decided through a connection that carries nothing")
		}
	}
	figure(t, "noticing that nothing comes back", time.Since(begun)/5, 100*time.Millisecond)
	p.Silent.Store(false)
	figure(t, "recovery", testkit.Eventually(t, "a decision", func() bool { return one(b, 1).Err == nil }), time.Second)
}

// TestF05_Stalled: while Redis stalls, a call without a fallback that has been sent gets its answer as soon as possible, and counts once.
// A call with a fallback, and a new one, do not wait.
func TestF05_Stalled(t *testing.T) {
	s := redistest.Start(t)
	limits := lasting(1e6)
	ask := func(b *Backend, key int, wait backend.Wait) backend.Op {
		ctx, cancel := context.WithTimeout(t.Context(), slow)
		defer cancel()
		ops := []backend.Op{{Key: keyOf(key), Limits: limits, Take: engine.Take{Cost: 1, Count: 1}, Wait: wait}}
		b.Apply(ctx, ops)
		return ops[0]
	}
	b := run(t, Config{URL: s.Addr()}, true)
	for round := range 20 { // on a busy machine, Redis may answer too late
		key := 2 * round
		begun := time.Now()
		s.Stop()
		answers := make(chan backend.Op, 2)
		for i, wait := range []backend.Wait{backend.WaitFull, backend.WaitShort} {
			go func() { answers <- ask(b, key+i, wait) }()
		}
		first := <-answers // the one with WaitShort, once Redis is silent
		silent := b.main.one.breaker.Silent()
		again := ask(b, key, backend.WaitFull)
		s.Cont()
		second := <-answers
		stalled := time.Since(begun)
		testkit.Eventually(t, "a decision", func() bool { return one(b, 1<<60).Err == nil })
		if !silent || stalled > patience || errors.Is(second.Err, backend.ErrUnsent) {
			t.Logf("round %d: silent %t, %v, %v", round, silent, stalled, second.Err)
			continue
		}
		if first.Err == nil || first.Key != keyOf(key+1) || again.Err == nil || !errors.Is(again.Err, backend.ErrUnsent) {
			t.Errorf("one that is not patient: %v, a new one: %v; want errors", first.Err, again.Err)
		}
		if second.Err != nil || second.Decision.Left != 1e6 {
			t.Errorf("one that was sent and is patient: %+v, %v", second.Decision, second.Err)
		}
		if now := ask(b, key, backend.WaitFull); now.Err != nil || now.Decision.Left != 1e6-1 {
			t.Errorf("after that %d are left, %v; want that one was counted once", now.Decision.Left, now.Err)
		}
		return
	}
	t.Error("no round was quick enough")
}
