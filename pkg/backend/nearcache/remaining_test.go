package nearcache_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/backend/nearcache"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestRemainingAfterLarge: a request too large for the first grant spends from the second, and later small requests must not get a higher
// number.
func TestRemainingAfterLarge(t *testing.T) {
	for _, l := range []engine.Limit{plain(10_000, hour), bucket(10_000, 365*24*hour)} {
		synctest.Test(t, func(t *testing.T) {
			r := newLessor(t, newStore(), nearcache.Config{}, l)
			r.lease = 100
			last, large := uint64(10_000), 0
			for range 500 {
				cost := uint64(1)
				if s := r.Stats(); s.Held > 100 && s.Held < 120 { // few of the first grant, and all of the second
					cost = 40
					large++
				}
				d := r.do(backend.Take, cost)
				synctest.Wait()
				if now := d.Left - cost; now >= last {
					t.Fatalf("%d hits remained, and after %d more %d: %+v", last, cost, now, r.Stats())
				}
				last = d.Left - cost
			}
			if large == 0 {
				t.Error("no request was too large for the first grant")
			}
		})
	}
}

// distant is a store with a long round trip, whose replies may arrive in another order than the calls.
type distant struct {
	backend.Backend

	mu   sync.Mutex
	rand *rand.Rand
	far  time.Duration
	all  []*client
}

// client sends sequential requests to its own replica.
type client struct {
	*nearcache.Backend

	store *distant
	last  uint64 // hits left in the last answer
	back  []back // refunds by other clients; guarded by store.mu
}

// back is a refund to the store.
type back struct {
	at   time.Time
	hits uint64
}

type clientKey struct{}

func (s *distant) delay() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.far + time.Duration(s.rand.Int64N(int64(time.Millisecond)))
}

func (s *distant) Apply(ctx context.Context, ops []backend.Op) {
	time.Sleep(s.delay())
	s.Backend.Apply(ctx, ops)
	s.mu.Lock()
	for i := range ops {
		for _, c := range s.all {
			if ops[i].Mode == backend.Refund && ctx.Value(clientKey{}) != c {
				c.back = append(c.back, back{time.Now(), ops[i].Take.Cost})
			}
		}
	}
	s.mu.Unlock()
	time.Sleep(s.delay())
}

// excused reports whether the hits left in c's answers may rise by the given number, because calls of other clients refunded as many hits
// since c last knew the exact number. It consumes these refunds.
func (c *client) excused(rise uint64) bool {
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	for len(c.back) > 0 && time.Since(c.back[0].at) > 2*time.Second {
		c.back = c.back[1:]
	}
	for i := range c.back {
		used := min(rise, c.back[i].hits)
		rise, c.back[i].hits = rise-used, c.back[i].hits-used
	}
	return rise == 0
}

// TestRemainingNeverRises checks that the hits left in a client's answers never rise within a window, or before a token has arrived,
// unless another call refunded hits.
func TestRemainingNeverRises(t *testing.T) {
	served, asked := uint64(0), uint64(0)
	rapid.Check(t, func(r *rapid.T) {
		draws := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		var wrong string
		synctest.Test(t, func(t *testing.T) {
			s := newDistant(t, draws)
			wrong = s.play(draws)
			for _, c := range s.all {
				st := c.Stats()
				served, asked = served+st.Hits, asked+st.Misses
			}
		})
		if wrong != "" {
			r.Fatal(wrong)
		}
	})
	t.Logf("leases served %d, and the stores decided %d", served, asked)
	if served < asked/10 {
		t.Error("leases served next to nothing, so that this shows next to nothing")
	}
}

// newDistant returns a store with up to three clients.
func newDistant(t *testing.T, draws *rand.Rand) *distant {
	t.Helper()
	s := &distant{
		Backend: memory.New(memory.Config{Now: now}), rand: rand.New(rand.NewPCG(draws.Uint64(), 3)),
		far: time.Duration([]int{0, 0, 1, 15, 40}[draws.IntN(5)]) * time.Millisecond,
	}
	var wg sync.WaitGroup
	for range 1 + draws.IntN(3) {
		c := &client{Backend: nearcache.New(s, nearcache.Config{}), store: s}
		s.all = append(s.all, c)
		wg.Go(func() { _ = c.Run(t.Context()) })
	}
	t.Cleanup(wg.Wait)
	synctest.Wait()
	return s
}

// play lets the clients send requests, and describes the first wrong answer, or returns "".
func (s *distant) play(draws *rand.Rand) string {
	limit := plain([]uint64{300, 2000, 20_000}[draws.IntN(3)], hour)
	if limit.CountRefused = draws.IntN(2) == 0; draws.IntN(3) == 0 {
		limit = bucket(limit.Hits, 365*24*hour)
	}
	lease := []backend.Lease{backend.LeaseAuto, 20, 100}[draws.IntN(3)]
	wrong := make([]string, len(s.all))
	var wg sync.WaitGroup
	for i, c := range s.all {
		c.last = limit.Hits
		own := rand.New(rand.NewPCG(draws.Uint64(), 2))
		wg.Go(func() { wrong[i] = c.run(limit, lease, own) })
	}
	wg.Wait()
	return strings.Join(wrong, "")
}

// run sends requests, mostly small ones, and describes the first wrong answer, or returns "".
func (c *client) run(limit engine.Limit, lease backend.Lease, draws *rand.Rand) string {
	costs := []uint64{1, 1, 1, 1, 1, 1, 1, 1, 2, 5, uint64(1 + draws.IntN(50)), limit.Hits + 1}
	for i := range 400 {
		op := backend.Op{Key: keyOf(1), Limits: engine.Limits{limit}, Lease: lease, Take: engine.Take{Cost: costs[draws.IntN(len(costs))], Count: 1}}
		if op.Take.Cost > limit.Hits && limit.CountRefused {
			op.Take.Cost = 3
		}
		if draws.IntN(30) == 0 {
			op.Mode = backend.Peek
		}
		ops := []backend.Op{op}
		c.Apply(context.WithValue(context.Background(), clientKey{}, c), ops)
		time.Sleep(time.Duration(draws.IntN(2000)) * time.Microsecond)
		d := ops[0].Decision
		if d.Admitted == 0 {
			continue // a rejected request reports 0
		}
		remains := d.Left
		if op.Mode == backend.Take {
			remains -= op.Take.Cost
		}
		if remains > c.last && !c.excused(remains-c.last) {
			return fmt.Sprintf("request %d, mode %d, cost %d: %d remained, and now %d; the store is %v away, %+v, %+v",
				i, op.Mode, op.Take.Cost, c.last, remains, c.store.far, limit, c.Stats())
		}
		c.last = remains
	}
	return ""
}
