package backendtest

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// testIsolation checks that hits on one key never change another. The 450 keys include all that differ in one bit and all that repeat one
// byte, so a store that truncates, folds or joins keys would confuse two of them. Each key gets a different number of hits, so all pairs
// are tested together. Each key has two counters and a penalty, if the backend supports these.
func testIsolation(t *testing.T, h Harness) {
	s := open(t, h)
	p := s.player()
	keys := isolated(s)
	limits := listOf(fixed(10_000, hour), sliding(10_000, hour, 10))
	penalty := &engine.Penalty{For: minute, Max: minute, On: engine.OnReached, Escalate: 1}
	if h.FixedWindows {
		limits, penalty = engine.Limits{fixed(10_000, hour)}, nil
	}
	ops := make([]backend.Op, len(keys))
	for i, key := range keys {
		ops[i] = backend.Op{Key: key, Limits: limits, Penalty: penalty, Take: engine.Take{Cost: uint64(i + 1), Count: 1}}
	}
	p.apply(t, ops...)
	for i := range ops {
		ops[i].Mode, ops[i].Take.Cost = backend.Peek, 1
	}
	p.apply(t, ops...)
	for i := range ops {
		if got, want := ops[i].Decision.Left, uint64(10_000-(i+1)); got != want {
			t.Errorf("key %x has %d left, want %d: hits of another key were counted to it", keys[i], got, want)
		}
	}
	ops[0].Mode = backend.Reset
	p.apply(t, ops[0])
	ops[0].Mode = backend.Peek
	p.apply(t, ops...)
}

func isolated(s *subject) []backend.Key {
	seen := map[backend.Key]bool{}
	var keys []backend.Key
	add := func(k backend.Key) {
		if !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	base := s.key()
	add(base)
	for bit := range 8 * len(base) {
		k := base
		k[bit/8] ^= 1 << (bit % 8)
		add(k)
	}
	for b := range 256 {
		var k backend.Key
		for i := range k {
			k[i] = byte(b)
		}
		add(k)
	}
	for len(keys) < 450 {
		add(s.key())
	}
	return keys
}
