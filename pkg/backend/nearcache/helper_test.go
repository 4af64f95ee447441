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

// store is memory that counts what it is asked, takes a while to answer, and fails when told to.
type store struct {
	backend.Backend

	mu    sync.Mutex
	asked int
	taken uint64        // hits that were debited for leases
	late  time.Duration // before it decides
	took  time.Duration // after it decided
	mixed *rand.Rand    // if not nil, how much less than that, so that answers overtake each other
	err   error
}

func newStore() *store { return &store{Backend: memory.New(memory.Config{})} }

// count is how many ops it was asked for.
func (s *store) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// delay has it take so long to answer.
func (s *store) delay(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = took
}

// fetched is how many hits were debited for leases, so far.
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

// fetched returns how many hits ops have debited for leases.
func fetched(ops []backend.Op) (hits uint64) {
	for i := range ops {
		if op := &ops[i]; op.Take.Extra > 0 {
			hits += op.Decision.Admitted * op.Take.Cost
		}
	}
	return hits
}

// replica is a near cache over a store.
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

// do applies one op, and checks whether the store was asked.
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

// takes takes, and checks the verdict and whether the store was asked.
func (r *replica) takes(cost uint64, admitted, asks bool) engine.Decision {
	r.Helper()
	d := r.do(backend.Take, cost, asks)
	if got := d.Admitted == 1; got != admitted {
		r.Fatalf("cost %d: admitted is %t, want %t: %+v", cost, got, admitted, d)
	}
	return d
}

// drain takes until nothing is left, and is rejected once.
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

// plain is a window in which only admitted hits count, so that what is left says how many there were.
func plain(hits uint64, w engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.FixedWindow, Hits: hits, Window: w}
}

func bucket(hits uint64, w engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.TokenBucket, Hits: hits, Window: w, Burst: hits, Initial: hits}
}
