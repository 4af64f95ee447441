package redis

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// slow is the time-out of tests that do not measure time, and that are fast unless they fail.
const slow = 20 * time.Second

// opened makes a backend of c, which does not run yet.
func opened(tb testing.TB, c Config) *Backend {
	tb.Helper()
	b, err := New(c)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// run makes a backend of c, runs it, and waits until it is connected if want is true. It ends with the test.
func run(tb testing.TB, c Config, want bool) *Backend {
	tb.Helper()
	b := opened(tb, c)
	start(tb, b)
	if want {
		testkit.Eventually(tb, "a decision", func() bool { return one(b, 1<<60).Err == nil })
	}
	return b
}

// start runs b until the test ends.
func start(tb testing.TB, b *Backend) {
	tb.Helper()
	testkit.Run(tb, b.Run)
	tb.Cleanup(func() { // also ends Run
		if err := b.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	})
}

// failover waits for another master, for longer than for other events, and returns the time that this took.
func failover(tb testing.TB, done func() bool) time.Duration {
	tb.Helper()
	begun := time.Now()
	if !testkit.Poll(2*testkit.Patience, done) {
		tb.Fatalf("no other master after %v", time.Since(begun))
	}
	return time.Since(begun)
}

// reached connects once, and returns the error.
func reached(tb testing.TB, b *Backend) error {
	tb.Helper()
	for _, p := range b.pools() {
		n := p.one
		if n == nil {
			n = p.newNode(p.target.addrs[0], at(p.target.addrs[0]))
		}
		l, e := n.open(tb.Context())
		if e != nil {
			return p.advised(e)
		}
		l.close()
	}
	return nil
}

// waiting returns the number of operations queued for the single server.
func waiting(b *Backend) int {
	b.main.one.mu.Lock()
	defer b.main.one.mu.Unlock()
	return int(b.main.one.queue.length.Load())
}

// keyOf returns the i-th key. Like those of real counters, it is a hash.
func keyOf(i int) (k backend.Key) {
	binary.BigEndian.PutUint64(k[:8], mix(uint64(2*i)))
	binary.BigEndian.PutUint64(k[8:], mix(uint64(2*i+1)))
	return k
}

// mix is the output function of splitmix64.
func mix(x uint64) uint64 {
	x *= 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// lasting returns a fixed window of more than two years, which does not end during a test.
func lasting(hits uint64) engine.Limits {
	return engine.Limits{{Algorithm: engine.FixedWindow, Hits: hits, Window: 7e13, CountRefused: true}}
}

// one takes one hit of a million from the key-th counter.
func one(b *Backend, key int) backend.Op {
	ops := [1]backend.Op{{Key: keyOf(key), Name: nameOf(key), Limits: lasting(1e6), Take: engine.Take{Cost: 1, Count: 1}}}
	b.Apply(context.Background(), ops[:])
	return ops[0]
}

// oneIn is one with a deadline.
func oneIn(b *Backend, key int, wait time.Duration) backend.Op {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ops := [1]backend.Op{{Key: keyOf(key), Name: nameOf(key), Limits: lasting(1e6), Take: engine.Take{Cost: 1, Count: 1}}}
	b.Apply(ctx, ops[:])
	return ops[0]
}

// nameOf returns the reference's name of the key-th counter.
func nameOf(key int) []byte { return binary.AppendUvarint([]byte("domain_key_"), uint64(key)) }

// class returns the class of op's error, or "".
func class(op backend.Op) remote.Class {
	if e, ok := op.Err.(*remote.Error); ok { //nolint:errorlint // it is never wrapped
		return e.Class
	}
	return ""
}

// everyAlgorithm returns a limit for each algorithm, and a list.
func everyAlgorithm() []engine.Limits {
	limits := map[string]engine.Limit{
		"fixed":  {Algorithm: engine.FixedWindow, Hits: 1e6, Window: 1 << 48},
		"window": {Algorithm: engine.SlidingWindow, Hits: 1e6, Window: 1 << 48, Precision: 100},
		"log":    {Algorithm: engine.SlidingLog, Hits: 1e4, Window: 1 << 48},
		"bucket": {Algorithm: engine.TokenBucket, Hits: 1e6, Window: 1e6, Burst: 1e6, Initial: 1e6},
		"leaky":  {Algorithm: engine.LeakyBucket, Hits: 1e6, Window: 1e6, Burst: 1e6},
		"slots":  {Algorithm: engine.Concurrency, Hits: 1e4, Window: 1 << 48},
	}
	var all []engine.Limits
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		all = append(all, engine.Limits{limits[name]})
	}
	list := engine.Limits{limits["fixed"], limits["window"]}
	for i := range list {
		list[i].Listed = true
	}
	return append(all, list)
}

// events records the kinds of events.
type events struct {
	mu   sync.Mutex
	seen map[remote.EventKind][]remote.Event
}

func (e *events) observe(ev remote.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen = map[remote.EventKind][]remote.Event{}
	}
	e.seen[ev.Kind] = append(e.seen[ev.Kind], ev)
}

func (e *events) count(k remote.EventKind) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.seen[k])
}
