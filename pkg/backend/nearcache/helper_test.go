package nearcache_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const (
	second engine.Micros = 1_000_000
	minute               = 60 * second
	hour                 = 60 * minute
)

// store is a memory backend that counts calls, with configurable delays and failures.
type store struct {
	backend.Backend

	mu    sync.Mutex
	asked int
	taken uint64        // hits debited for leases
	late  time.Duration // delay before the decision
	took  time.Duration // delay after the decision
	mixed *rand.Rand    // if not nil, randomly shortens the delay, so that answers overtake each other
	err   error
}

func newStore() *store { return &store{Backend: memory.New(memory.Config{})} }

// count returns the number of ops so far.
func (s *store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// delay sets the delay of answers.
func (s *store) delay(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = took
}

// fetched returns the number of hits debited for leases so far.
func (s *store) fetched() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

func (s *store) Apply(ctx context.Context, ops []backend.Op) {
	if ctx.Err() != nil {
		for i := range ops {
			ops[i].Err = backend.ErrUnsent
		}
		return
	}
	s.mu.Lock()
	s.asked += len(ops)
	late, took, err := s.late, s.took, s.err
	if s.mixed != nil {
		took = time.Duration(s.mixed.Int64N(int64(took)))
	}
	s.mu.Unlock()
	time.Sleep(late)
	s.Backend.Apply(ctx, ops)
	s.mu.Lock()
	s.taken += fetched(ops)
	s.mu.Unlock()
	time.Sleep(took)
	for i := range ops {
		ops[i].Err = err
	}
}

// fetched returns the number of hits that ops debited for leases.
func fetched(ops []backend.Op) (hits uint64) {
	for i := range ops {
		if op := &ops[i]; op.Take.Extra > 0 {
			hits += op.Decision.Admitted * op.Take.Cost
		}
	}
	return hits
}

// replica is a near cache in front of a store.
type replica struct {
	*testing.T
	*nearcache.Backend
	store   *store
	limits  engine.Limits
	penalty *engine.Penalty
}

func newReplica(t *testing.T, s *store, c nearcache.Config, limits ...engine.Limit) *replica {
	t.Helper()
	for _, l := range limits {
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	return &replica{T: t, Backend: nearcache.New(s, c), store: s, limits: limits}
}

// do applies one op, and checks whether it reached the store.
func (r *replica) do(m backend.Mode, cost uint64, asks bool) engine.Decision {
	r.Helper()
	ops := []backend.Op{{Key: keyOf(1), Limits: r.limits, Penalty: r.penalty, Mode: m, Take: engine.Take{Cost: cost, Count: 1}}}
	before := r.store.asked
	r.Apply(context.Background(), ops)
	if got := r.store.asked > before; got != asks {
		r.Fatalf("mode %d, cost %d: the store was asked: %t, want %t", m, cost, got, asks)
	}
	if (ops[0].Origin == backend.FromRejection) == asks {
		r.Fatalf("mode %d, cost %d: remembered is %t", m, cost, !asks)
	}
	return ops[0].Decision
}

// takes takes hits, and checks the decision and whether the op reached the store.
func (r *replica) takes(cost uint64, admitted, asks bool) engine.Decision {
	r.Helper()
	d := r.do(backend.Take, cost, asks)
	if got := d.Admitted == 1; got != admitted {
		r.Fatalf("cost %d: admitted is %t, want %t: %+v", cost, got, admitted, d)
	}
	return d
}

// drain takes until nothing is left, and expects one rejection.
func (r *replica) drain(hits int) {
	r.Helper()
	for range hits {
		r.takes(1, true, true)
	}
	r.takes(1, false, true)
}

func keyOf(i uint64) (k backend.Key) {
	binary.BigEndian.PutUint64(k[:8], i*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(k[8:], i)
	return k
}

func window(hits uint64, w engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.FixedWindow, CountRefused: true, Hits: hits, Window: w}
}

// plain returns a window that counts only admitted hits, so that the hits left determine their number.
func plain(hits uint64, w engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.FixedWindow, Hits: hits, Window: w}
}

func bucket(hits uint64, w engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.TokenBucket, Hits: hits, Window: w, Burst: hits, Initial: hits}
}
