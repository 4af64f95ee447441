// Package backendtest is the test suite of backends. It defines the contract of [backend.Backend] by example, and every backend must pass
// it.
//
// It runs hand-written traces, the scripts of pkg/engine and random sequences of operations against a backend. At the same times it
// applies them to pkg/engine with states in a map, and compares every decision. It checks the decisions that a near cache remembers
// against their own contract. The traces and some of the sequences are also compared with the twins in enginetest. The suite controls the
// clock: it sets it before each call, forward and back. Separate tests cover concurrent callers and the isolation of keys.
//
//	func TestBackend(t *testing.T) {
//		backendtest.Run(t, backendtest.Harness{Open: func(t testing.TB, now func() engine.Micros) backend.Backend {
//			return memory.New(memory.Config{Now: now})
//		}})
//	}
//
// rapid draws the random sequences; -rapid.checks sets their number per algorithm.
package backendtest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// Harness configures the suite for a backend.
type Harness struct {
	// Open returns an empty backend that uses the time returned by now, and may call it concurrently. The suite closes the backend. A
	// backend with a cap on keys must have room for 100,000.
	Open func(t testing.TB, now func() engine.Micros) backend.Backend
	// Calls is the maximum length of a random sequence: 100 if zero, 30 with -short.
	Calls int
	// Takes is the number of takes in tests with many goroutines: 20,000 if zero.
	Takes int
	// Brief leaves out cases of many reservations, for a backend whose store another test plays them on.
	Brief bool
	// FixedWindows restricts the suite to one clock-aligned fixed window per descriptor that counts rejected hits, and to a clock that
	// never jumps back, for backends that support nothing else.
	FixedWindows bool
}

// Run tests a backend.
func Run(t *testing.T, h Harness) {
	if h.Calls == 0 {
		h.Calls = 100
		if testing.Short() {
			h.Calls = 30
		}
	}
	if h.Takes == 0 {
		h.Takes = 20_000
	}
	t.Run("Traces", func(t *testing.T) { testTraces(t, h) })
	t.Run("Scripts", func(t *testing.T) { testScripts(t, h) })
	t.Run("Contract", func(t *testing.T) { testContract(t, h) })
	t.Run("Random", func(t *testing.T) { testRandom(t, h) })
	if !h.FixedWindows {
		t.Run("Reservations", func(t *testing.T) { testReservations(t, h) })
	}
	t.Run("Concurrent", func(t *testing.T) { testConcurrent(t, h) })
	t.Run("Isolation", func(t *testing.T) { testIsolation(t, h) })
}

// start is the initial time of every test: midnight UTC, at which windows of all usual lengths begin too.
const start = enginetest.Start

// subject is a backend under test with its clock.
type subject struct {
	backend backend.Backend
	fixed   bool // supports only fixed windows; see Harness
	clock   atomic.Int64
	keys    atomic.Uint64
}

func open(t testing.TB, h Harness) *subject {
	t.Helper()
	s := &subject{fixed: h.FixedWindows}
	s.clock.Store(int64(start))
	s.backend = h.Open(t, func() engine.Micros { return engine.Micros(s.clock.Load()) })
	t.Cleanup(func() {
		if err := s.backend.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

// key returns a new key. Like that of a real counter, it is a hash.
func (s *subject) key() backend.Key {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, s.keys.Add(1)))
	return backend.Key(sum[:len(backend.Key{})])
}

// reporter is the common part of testing.T and rapid.T.
type reporter interface {
	Helper()
	Fatalf(format string, args ...any)
}

// player applies operations to a backend, to the oracle and to twins.
type player struct {
	*subject
	oracle *oracle
	twins  twins // nil if twins are not used
	now    engine.Micros
	last   engine.Micros
	jumped bool // the clock went back
	rules  map[backend.Key]*rule

	compared, twinned int // numbers of operations so far
}

// rule is the rule of a key's first operation.
type rule struct {
	limits  engine.Limits
	penalty *engine.Penalty
	changed bool // the key has since been used with another rule
}

func (s *subject) player() *player {
	return &player{subject: s, oracle: newOracle(), twins: twins{}, now: start, rules: map[backend.Key]*rule{}}
}

// changed reports whether op's key has been used with another rule, now or before. A state written under one rule may expire earlier than
// another rule expects: a log with a window of seconds keeps its stamps for seconds, even if the next rule has a window of days.
func (p *player) changed(op *backend.Op) bool {
	r := p.rules[op.Key]
	if r == nil {
		r = &rule{limits: slices.Clone(op.Limits), penalty: op.Penalty}
		p.rules[op.Key] = r
	}
	if !slices.EqualFunc(r.limits, op.Limits, engine.Limit.Equal) || !cmp.Equal(r.penalty, op.Penalty) {
		r.changed = true
	}
	return r.changed
}

// apply applies ops in one call at the current time, and fails the test if a decision differs from the oracle's.
func (p *player) apply(t reporter, ops ...backend.Op) {
	t.Helper()
	p.jumped, p.last = p.jumped || p.now < p.last, p.now
	p.clock.Store(int64(p.now))
	for i := range ops { // exposes fields that Apply does not set
		ops[i].Decision, ops[i].Err = poison(), errNotDecided
		ops[i].Origin = backend.FromStore
	}
	p.backend.Apply(context.Background(), ops)
	for i := range ops {
		op := &ops[i]
		if op.Err != nil {
			t.Fatalf("op %d of %d at %d µs: %s: %v", i, len(ops), p.now, describe(op), op.Err)
		}
		changed := p.changed(op)
		if op.Origin == backend.FromRejection {
			if want := p.oracle.remembered(op, p.now); !changed {
				checkRemembered(t, op, want, !p.jumped && len(ops) == 1)
			}
			continue
		}
		if diff := cmp.Diff(p.oracle.apply(op, p.now), op.Decision); diff != "" {
			t.Fatalf("op %d of %d at %d µs: %s: decision (-engine's +got):\n%s", i, len(ops), p.now, describe(op), diff)
		}
		p.compared++
		if p.twins == nil || op.Reserve != nil { // twins do not support reservations
			continue
		}
		if diff := cmp.Diff(p.twins.apply(op, p.now), op.Decision); diff != "" {
			t.Fatalf("op %d of %d at %d µs: %s: decision (-twin's +got):\n%s", i, len(ops), p.now, describe(op), diff)
		}
		p.twinned++
	}
}

// checkRemembered checks a rejection remembered by a near cache against want, the backend's own decision. Both must reject and, if the
// clock is steady, name the same time for the next attempt. Later operations on the counter can only have delayed the backend's times and
// reduced its hits left.
func checkRemembered(t reporter, op *backend.Op, want engine.Decision, steady bool) {
	t.Helper()
	got := op.Decision
	if op.Mode != backend.Take && op.Mode != backend.Peek {
		t.Fatalf("%s: a near cache answered what is for the store", describe(op))
	}
	if got.Admitted != 0 || want.Admitted != 0 {
		t.Fatalf("%s: remembered was %+v, the store would say %+v", describe(op), got, want)
	}
	same := got.Strictest == want.Strictest // otherwise ResetAfter is that of another limit, which has become the strictest
	if got.RetryAfter <= 0 || got.RetryAfter > want.RetryAfter || got.Penalty > want.Penalty || same && got.ResetAfter > want.ResetAfter {
		t.Fatalf("%s: the times of what was remembered, %+v, are later than the store's, %+v", describe(op), got, want)
	}
	if steady && got.RetryAfter != want.RetryAfter {
		t.Fatalf("%s: remembered was %+v, which passes at another time than the store would say, %+v", describe(op), got, want)
	}
	if len(op.Limits) == 1 && got.Window > want.Window || got.Wait != 0 {
		t.Fatalf("%s: remembered was %+v, the store would say %+v", describe(op), got, want)
	}
}

// describe describes op in words.
func describe(op *backend.Op) string {
	penalty := "none"
	if op.Penalty != nil {
		penalty = fmt.Sprintf("%+v", *op.Penalty)
	}
	mode := [...]string{"take", "peek", "refund", "reset", "settle", "force reset"}[op.Mode]
	return fmt.Sprintf("key %x, limits %+v, penalty %s, reserve %+v: %s %+v", op.Key, op.Limits, penalty, op.Reserve, mode, op.Take)
}
