package nearcache_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// wire is a replica's slow, unreliable connection to the shared store: it loses some calls and replies and duplicates others. It delivers
// refunds at most once, because stores send nothing twice.
type wire struct {
	*fleet

	// Guarded by fleet.mu.

	dead     bool   // the replica's process has died
	taken    uint64 // hits that were debited for leases
	gave     uint64 // leased hits that were refunded
	accepted uint64 // part of gave that windows counted
	spent    uint64 // hits admitted without the store
}

// trace records the handling of a request, whose context holds it.
type trace struct {
	asked bool
	moment
}

// moment is the time of an event on the store's clock, its sequence number, and the number of leased hits then.
type moment struct {
	at          engine.Micros
	nth         int
	hits        uint64
	outstanding uint64
}

type traceKey struct{}

var errLost = errors.New("lost")

// Apply applies ops. Some get an error instead of an answer.
func (w *wire) Apply(ctx context.Context, ops []backend.Op) {
	before, after, fate := w.delays()
	time.Sleep(before)
	w.mu.Lock()
	if w.dead || fate == 0 || ctx.Err() != nil {
		w.mu.Unlock()
		lose(ops)
		for i := range ops {
			if fate != 0 {
				ops[i].Err = backend.ErrUnsent
			}
		}
		return
	}
	twice := append([]backend.Op(nil), ops...)
	for i := range ops {
		w.apply(ctx, ops[i:i+1])
	}
	if fate == 1 {
		for i := range twice {
			if twice[i].Mode == backend.Take {
				w.apply(ctx, twice[i:i+1])
			}
		}
	}
	if tr, ok := ctx.Value(traceKey{}).(*trace); ok {
		tr.asked, tr.moment = true, w.moment(ops[len(ops)-1].Key)
	}
	w.mu.Unlock()
	time.Sleep(after)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead || fate == 2 {
		lose(ops)
	}
}

func (*wire) Close() error { return nil }

func lose(ops []backend.Op) {
	for i := range ops {
		ops[i].Decision, ops[i].Err = engine.Decision{}, errLost
	}
}

// fleet is a set of replicas and their shared state.
type fleet struct {
	store backend.Backend

	mu       sync.Mutex
	rand     *rand.Rand
	debited  map[backend.Key]uint64 // hits debited for leases, less those refunded
	events   int
	weather  weather
	replicas []*member
	stopped  []*member
	running  sync.WaitGroup
}

// weather is the reliability of calls.
type weather uint8

const (
	calm  weather = iota // calls take at most a millisecond
	slow                 // some calls take seconds, but all arrive, so that lost hits do not mask duplicate ones
	rough                // some calls are lost or duplicated
)

// member is a replica.
type member struct {
	*nearcache.Backend

	wire *wire
	stop context.CancelFunc
}

// moment returns the current time. f.mu must be held.
func (f *fleet) moment(key backend.Key) moment {
	f.events++
	return moment{at: now(), nth: f.events, outstanding: f.debited[key]}
}

// fine is the most common fate of calls; smaller values are faults.
const fine = 100

// delays draws the delays of a call and its reply, and the fate of the call: usually fine, otherwise it is lost, it is duplicated, or its
// reply is lost.
func (f *fleet) delays() (before, after time.Duration, fate int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.weather == calm {
		return time.Duration(f.rand.Int64N(int64(time.Millisecond))), 0, fine
	}
	delay := func() time.Duration {
		switch f.rand.IntN(40) {
		case 0:
			return time.Duration(f.rand.Int64N(int64(3 * time.Second)))
		case 1, 2, 3, 4:
			return time.Duration(f.rand.Int64N(int64(20 * time.Millisecond)))
		}
		return time.Duration(f.rand.Int64N(int64(time.Millisecond)))
	}
	before, after, fate = delay(), delay(), f.rand.IntN(fine+1)
	if f.weather == slow {
		fate = fine
	}
	return before, after, fate
}

// apply applies one op, and tracks the hits debited for leases. f.mu must be held.
func (w *wire) apply(ctx context.Context, ops []backend.Op) {
	op := &ops[0]
	before := w.counted(ctx, op)
	w.store.Apply(ctx, ops)
	switch {
	case op.Take.Extra > 0:
		w.debited[op.Key] += op.Decision.Admitted * op.Take.Cost
		w.taken += op.Decision.Admitted * op.Take.Cost
	case op.Mode == backend.Refund && op.Lease == backend.LeaseOff: // from a lease
		w.debited[op.Key] -= min(op.Take.Cost, w.debited[op.Key])
		w.gave += op.Take.Cost
		w.accepted += before - w.counted(ctx, op)
	}
}

// counted returns the hits counted in the window of op's key, if op refunds hits.
func (f *fleet) counted(ctx context.Context, op *backend.Op) uint64 {
	if op.Mode != backend.Refund || len(op.Limits) != 1 || op.Limits[0].Algorithm != engine.FixedWindow {
		return 0
	}
	return count(ctx, f.store, op.Key, op.Limits[0])
}

// count returns the hits counted in the window of a key.
func count(ctx context.Context, store backend.Backend, key backend.Key, l engine.Limit) uint64 {
	l.Hits = math.MaxUint32
	look := []backend.Op{{Key: key, Limits: engine.Limits{l}, Mode: backend.Peek, Take: engine.Take{Count: 1}}}
	store.Apply(ctx, look)
	return l.Hits - look[0].Decision.Left
}

// now returns the store's time.
func now() engine.Micros { return engine.Micros(time.Now().UnixMicro()) }

// start starts a replica with its own clock, which has a random offset and gains or loses up to 200 µs per second.
func (f *fleet) start(keys int) *member {
	f.mu.Lock()
	offset, drift := f.rand.Int64N(1e12), f.rand.Int64N(401)-200
	w := &wire{fleet: f}
	f.mu.Unlock()
	begin := time.Now()
	m := &member{wire: w, Backend: nearcache.New(w, nearcache.Config{Keys: keys, Now: func() engine.Micros {
		gone := time.Since(begin).Microseconds()
		return engine.Micros(offset + gone + gone*drift/1_000_000)
	}})}
	ctx, stop := context.WithCancel(context.Background())
	m.stop = stop
	f.running.Go(func() { _ = m.Run(ctx) })
	return m
}

// bound checks that the hits admitted on a counter do not exceed the guarantee of its algorithm.
type bound struct {
	limit    engine.Limit // with the largest number of hits and the largest burst so far
	rate     float64      // highest rate so far, in hits per µs
	given    uint64       // hits refunded
	admitted []moment
}

// allow extends the bound for a new limit.
func (b *bound) allow(l engine.Limit) {
	b.limit.Hits, b.limit.Burst = max(b.limit.Hits, l.Hits), max(b.limit.Burst, l.Burst)
	b.rate = max(b.rate, float64(l.Hits)/float64(l.Window))
}

// wrong describes a violation of the bound, or returns "".
func (b *bound) wrong() string {
	slices.SortFunc(b.admitted, func(x, y moment) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.nth, y.nth)) })
	if b.limit.Algorithm == engine.FixedWindow {
		return b.wrongWindow()
	}
	start := engine.Micros(0)
	sum, worst := 0.0, math.Inf(-1) // maximum of rate·t − (admitted before) − outstanding, over all t
	for i, m := range b.admitted {
		if i == 0 {
			start = m.at
		}
		brought := b.rate * float64(m.at-start)
		worst = max(worst, brought-sum-float64(m.outstanding))
		sum += float64(m.hits)
		if over := sum - brought + worst - float64(b.limit.Burst+b.given); over > 0.01 {
			return fmt.Sprintf("with the hit at %d µs %.2f more than B + r·t and what was leased", m.at, over)
		}
	}
	return ""
}

func (b *bound) wrongWindow() string {
	windows := map[engine.Micros]uint64{}
	for _, m := range b.admitted {
		w := m.at - m.at%b.limit.Window
		if windows[w] += m.hits; windows[w] > b.limit.Hits+b.given {
			return fmt.Sprintf("%d hits in a window of %d, and %d were refunded in all", windows[w], b.limit.Hits, b.given)
		}
	}
	return ""
}

// TestLeaseBound checks that no more hits are admitted than the bound allows, for any clocks and any order of requests, evictions,
// reloads, deaths, and lost, late or duplicated calls and replies. If nothing is lost, no hit is lost.
func TestLeaseBound(t *testing.T) {
	for _, a := range []engine.Algorithm{engine.FixedWindow, engine.TokenBucket} {
		t.Run(a.String(), func(t *testing.T) {
			var leased, admitted, rejected, failed uint64
			rapid.Check(t, func(r *rapid.T) {
				g := play(t, r, a)
				for _, b := range g.bounds {
					if wrong := b.wrong(); wrong != "" {
						r.Fatal(wrong)
					}
				}
				if g.lost != "" {
					r.Fatal(g.lost)
				}
				leased, admitted, rejected, failed = leased+g.leased, admitted+g.admitted, rejected+g.rejected, failed+g.failed
			})
			t.Logf("leases served %.1f %% of %d admitted; %d were rejected, %d not answered",
				100*float64(leased)/float64(admitted), admitted, rejected, failed)
			if leased < admitted/50 {
				t.Error("leases served next to nothing, so that this shows next to nothing")
			}
		})
	}
}

// play runs a random sequence in a bubble. Panics that end the sequence early propagate from the bubble to the caller.
func play(t *testing.T, r *rapid.T, a engine.Algorithm) (g *game) {
	t.Helper()
	var thrown any
	synctest.Test(t, func(*testing.T) {
		defer func() { thrown = recover() }()
		g = newGame(r, a)
		defer g.end()
		for range rapid.IntRange(5, 25).Draw(r, "steps") {
			g.step(r)
		}
	})
	if thrown != nil {
		panic(thrown)
	}
	return g
}

// game is a random sequence in progress.
type game struct {
	*fleet

	limit  engine.Limit   // of the initial rules
	limits []engine.Limit // by replica
	lease  backend.Lease
	keys   int
	bounds []*bound
	asking sync.WaitGroup
	lost   string // violation found at the end; see unaccounted

	leased, admitted, rejected, failed uint64 // guarded by mu
}

func newGame(t *rapid.T, a engine.Algorithm) *game {
	hits := rapid.SampledFrom([]uint64{100, 300, 300, 2000, 20_000}).Draw(t, "hits")
	l := engine.Limit{Algorithm: a, Hits: hits, Window: rapid.SampledFrom([]engine.Micros{second, second, 2500_000, minute, hour}).Draw(t, "window")}
	if a == engine.TokenBucket {
		l.Burst = max(hits/rapid.SampledFrom([]uint64{1, 2, 10}).Draw(t, "burst"), 10)
		l.Initial = l.Burst
	} else {
		l.CountRefused = rapid.Bool().Draw(t, "count refused")
	}
	seed := rapid.Uint64().Draw(t, "seed")
	g := &game{
		fleet: &fleet{
			store: memory.New(memory.Config{Now: now}), rand: rand.New(rand.NewPCG(seed, 1)), debited: map[backend.Key]uint64{},
			weather: rapid.SampledFrom([]weather{calm, slow, rough, rough}).Draw(t, "weather"),
		},
		limit: l,
		lease: rapid.SampledFrom([]backend.Lease{backend.LeaseAuto, 20, 1000}).Draw(t, "lease"),
		keys:  rapid.IntRange(1, 4).Draw(t, "keys"),
	}
	for range g.keys {
		g.bounds = append(g.bounds, &bound{limit: l})
		g.bounds[len(g.bounds)-1].allow(l)
	}
	capacity := rapid.SampledFrom([]int{2, 1000}).Draw(t, "capacity")
	for range 3 {
		g.replicas, g.limits = append(g.replicas, g.start(capacity)), append(g.limits, l)
	}
	return g
}

// step sends a burst of requests to a replica, or disturbs it, and lets time pass.
func (g *game) step(t *rapid.T) {
	i := rapid.IntRange(0, len(g.replicas)-1).Draw(t, "replica")
	m := g.replicas[i]
	switch rapid.SampledFrom([]string{
		"burst", "burst", "burst", "burst", "burst", "burst", "burst", "burst", "reload", "die", "stop", "account",
	}).Draw(t, "step") {
	case "burst":
		b := burst{
			key: rapid.IntRange(0, g.keys-1).Draw(t, "key"), n: rapid.IntRange(1, 1000).Draw(t, "requests"),
			cost: rapid.SampledFrom([]uint64{1, 1, 1, 1, 1, 1, 3, 7, 60, g.limits[i].Hits / 2, g.limits[i].Hits + 1}).Draw(t, "cost"),
			mode: backend.Take, limit: g.limits[i], lease: g.lease,
			each: time.Duration(rapid.SampledFrom([]int{0, 200, 1000, 1000, 3000}).Draw(t, "µs between")) * time.Microsecond,
		}
		switch rapid.IntRange(0, 40).Draw(t, "another mode") {
		case 40:
			b.mode, b.n, b.lease = backend.Refund, 1, backend.LeaseAuto // unlike the refund of a lease
		case 39:
			b.mode = backend.Peek
		case 38, 37:
			b.gone = true
		}
		g.asking.Go(func() { g.ask(m, b) })
	case "reload": // of one replica, to other rules or back
		g.limits[i] = g.reloaded(t)
		g.lease = rapid.SampledFrom([]backend.Lease{backend.LeaseOff, backend.LeaseAuto, 20, 1000}).Draw(t, "new lease")
		g.mu.Lock()
		for _, b := range g.bounds {
			b.allow(g.limits[i])
		}
		g.mu.Unlock()
	case "die":
		g.mu.Lock()
		m.wire.dead = true
		g.mu.Unlock()
		g.replace(i)
	case "stop":
		g.replace(i)
	case "account":
		if wrong := g.misheld(); wrong != "" {
			t.Fatal(wrong)
		}
	}
	time.Sleep(time.Duration(rapid.SampledFrom([]int{0, 1, 30, 200, 1000, 5000}).Draw(t, "ms")) * time.Millisecond)
}

// reloaded draws the limit of a replica after a reload: often the initial one.
func (g *game) reloaded(t *rapid.T) engine.Limit {
	l := g.limit
	if rapid.Bool().Draw(t, "as at first") {
		return l
	}
	l.Hits = rapid.SampledFrom([]uint64{100, 300, 2000}).Draw(t, "new hits")
	if l.Algorithm == engine.TokenBucket {
		l.Burst = rapid.SampledFrom([]uint64{10, 100, 300, 2000}).Draw(t, "new burst")
		l.Initial = l.Burst
		l.Window = rapid.SampledFrom([]engine.Micros{l.Window, second, minute}).Draw(t, "new window")
	}
	return l
}

// replace stops a replica and starts another one.
func (g *game) replace(i int) {
	g.replicas[i].stop()
	g.stopped = append(g.stopped, g.replicas[i])
	g.replicas[i] = g.start(1000)
}

// burst is a sequence of equal requests.
type burst struct {
	key, n int
	cost   uint64
	mode   backend.Mode
	gone   bool // callers do not wait for an answer
	each   time.Duration
	limit  engine.Limit
	lease  backend.Lease
}

// ask sends a burst, each request in its own goroutine.
func (g *game) ask(m *member, b burst) {
	for range b.n {
		g.asking.Go(func() { g.one(m, b) })
		time.Sleep(b.each)
	}
}

func (g *game) one(m *member, b burst) {
	key := keyOf(uint64(b.key))
	if b.mode == backend.Refund {
		g.mu.Lock()
		g.bounds[b.key].given += b.cost
		g.mu.Unlock()
	}
	tr := new(trace)
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), traceKey{}, tr), time.Second)
	defer cancel()
	if b.gone {
		cancel()
	}
	ops := []backend.Op{{Key: key, Limits: engine.Limits{b.limit}, Mode: b.mode, Lease: b.lease, Take: engine.Take{Cost: b.cost, Count: 1}}}
	m.Apply(ctx, ops)
	if b.mode != backend.Take {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case ops[0].Err != nil:
		g.failed++
		return
	case ops[0].Decision.Admitted == 0:
		g.rejected++
		return
	}
	if !tr.asked {
		tr.moment = g.moment(key)
		g.debited[key] -= min(b.cost, g.debited[key])
		g.leased++
		m.wire.spent += b.cost
	}
	tr.hits = b.cost
	g.admitted++
	g.bounds[b.key].admitted = append(g.bounds[b.key].admitted, tr.moment)
}

// end waits for all requests and replicas.
func (g *game) end() {
	g.asking.Wait()
	for _, m := range g.replicas {
		m.stop()
	}
	g.running.Wait()
	g.lost = g.unaccounted()
}
