package nearcache

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The simulation plays long histories, where the model visits all short ones: replicas, a store, the messages between
// them, which are late, lost or come twice, replicas that die or hang, and clocks of different speed. One goroutine and
// one source of random numbers make all of it, in virtual time, so that a seed repeats what it has shown to the letter.
// The replicas' steps are those of lease.go, the store's those of pkg/engine.
//
// It checks the same as the model: no step gains a hit, and only what dies or gets lost loses any; and so no fixed window
// admits more than its limit, by the store's clock.

// TestSimulation plays a history for each seed that rapid draws: -rapid.checks says how many.
func TestSimulation(t *testing.T) {
	t.Parallel()
	var seeds, events, admitted, leased int
	begun := time.Now()
	rapid.Check(t, func(r *rapid.T) {
		seed := rapid.Uint64().Draw(r, "seed")
		s := simulate(seed)
		if s.wrong != "" {
			r.Fatalf("seed %d, at %d µs of\n%+v:\n%s", seed, s.now, s.limit, s.wrong)
		}
		seeds, events, admitted, leased = seeds+1, events+s.events, admitted+int(s.admitted), leased+int(s.leased)
	})
	t.Logf("%d seeds, %.0f a minute, %d events, %d hits admitted, %d of them by a lease",
		seeds, float64(seeds)/time.Since(begun).Minutes(), events, admitted, leased)
	if leased < admitted/10 {
		t.Error("leases served next to nothing, so that this shows next to nothing")
	}
}

// TestSimulationRepeats: a seed determines all that happens.
func TestSimulationRepeats(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		a, b := simulate(seed), simulate(seed)
		if a.now != b.now || a.events != b.events || a.admitted != b.admitted || a.debited != b.debited || a.lost != b.lost {
			t.Fatalf("seed %d differs from itself: %+v, %+v", seed, a, b)
		}
	}
}

// simulation is a history under way.
type simulation struct {
	rand     *rand.Rand
	now      engine.Micros // by the store's clock
	queue    simQueue
	events   int
	limit    engine.Limit
	state    engine.State
	replicas []*simReplica
	loss     int // one message in so many is lost; 0 is none
	wrong    string

	debited, returned uint64 // by the store: hits, and those that came back and were counted
	admitted, leased  uint64 // hits, and those of them that leases served
	lost              uint64 // hits that died with a replica or a message
	flying            uint64 // hits in messages
	window            int64  // the current one
	inWindow          uint64 // hits that were admitted in it
}

// simReplica is a replica. Its clock reads offset + now·(1 + drift/10^6).
type simReplica struct {
	lease     lease
	offset    engine.Micros
	drift     int64
	life      int           // counts the deaths
	hangs     engine.Micros // until then it does nothing
	storeLeft uint64
	lastGrant uint64
}

const (
	simLength  = 30 * simSecond
	simSecond  = engine.Micros(1_000_000)
	simEvents  = 1500
	simTimeout = 250_000
)

func simulate(seed uint64) *simulation {
	s := &simulation{rand: rand.New(rand.NewPCG(seed, 7)), now: 1_800_000_000 * simSecond}
	s.limit = engine.Limit{Hits: pick(s, uint64(200), 300, 2000, 20_000), Window: pick(s, simSecond, 2_500_000, 10*simSecond)}
	if s.limit.Algorithm = pick(s, engine.FixedWindow, engine.FixedWindow, engine.TokenBucket); s.limit.Algorithm == engine.TokenBucket {
		s.limit.Burst = max(s.limit.Hits/pick(s, uint64(1), 2), 200)
		s.limit.Initial = s.limit.Burst
	}
	s.loss = pick(s, 0, 100, 20)
	for range pick(s, 2, 3, 5) {
		r := &simReplica{offset: engine.Micros(s.rand.Int64N(1e12)), drift: s.rand.Int64N(401) - 200}
		s.replicas = append(s.replicas, r)
		s.arrive(r)
	}
	for range 4 {
		s.at(engine.Micros(s.rand.Int64N(int64(3*simSecond))), s.trouble)
	}
	end := s.now + simLength
	for s.wrong == "" && len(s.queue) > 0 && s.events < simEvents && s.now < end {
		e := heap.Pop(&s.queue).(simEvent)
		s.now = e.at
		s.events++
		e.happens()
		s.check()
	}
	return s
}

func pick[T any](s *simulation, all ...T) T { return all[s.rand.IntN(len(all))] }

// at has something happen after a while.
func (s *simulation) at(after engine.Micros, happens func()) {
	heap.Push(&s.queue, simEvent{at: s.now + after, nth: s.rand.Uint64(), happens: happens})
}

// arrive sends a request to r, and then the next one.
func (s *simulation) arrive(r *simReplica) {
	pause := s.rand.Int64N(2 * int64(s.limit.Window) / 40)
	if s.rand.IntN(4) > 0 { // in bursts
		pause /= 50
	}
	s.at(engine.Micros(pause), func() {
		s.awake(r, func() { s.request(r) })
		s.arrive(r)
	})
}

// awake does something at r, when it does not hang any more, and nothing if it has died by then.
func (s *simulation) awake(r *simReplica, do func()) {
	if r.hangs <= s.now {
		do()
		return
	}
	life := r.life
	s.at(r.hangs-s.now, func() {
		if life == r.life {
			s.awake(r, do)
		}
	})
}

func (s *simulation) clock(r *simReplica) engine.Micros {
	gone := s.now - 1_800_000_000*simSecond
	return r.offset + gone + gone*engine.Micros(r.drift)/1_000_000
}

// request is decided by the lease of r, or else by the store.
func (s *simulation) request(r *simReplica) {
	cost := pick(s, uint64(1), 1, 1, 2, 5)
	var unspent grant
	now := s.clock(r)
	r.lease, unspent = r.lease.expire(now)
	s.refund(unspent)
	from := r.lease.held
	left, ok := r.lease.spend(cost, now)
	if ok {
		r.lease = left
		s.admit(cost)
		s.leased += cost
		if from.window != 0 && from.window != s.windowNow() {
			s.fail("a hit of the window from %d is spent in that from %d", from.window, s.windowNow())
		}
	} else {
		life := r.life
		s.send(func() {
			d := s.take(engine.Take{Cost: cost, Count: 1})
			s.debited += d.Admitted * cost
			s.admit(d.Admitted * cost) // as of when the store decided, whether the caller hears of it or not
			left := subtract(d.Left, d.Admitted*cost)
			s.reply(r, life, 0, func() { r.storeLeft = left })
		})
	}
	if r.lease.asked == 0 && r.lease.held.left <= r.lastGrant/4 {
		s.refill(r)
	}
	if s.rand.IntN(200) == 0 { // its key is evicted
		r.lease, unspent = r.lease.end()
		s.refund(unspent)
	}
}

// refill asks for hits in advance. The call may reach the store twice, and so may the answer reach the replica.
func (s *simulation) refill(r *simReplica) {
	want := refillSize(maxLease(&s.limit, pick(s, backend.LeaseAuto, 20, 1000)), r.storeLeft, engine.MaxHits, 1)
	if want == 0 {
		return
	}
	r.lease = r.lease.ask()
	f := r.lease.asked
	sent, life := s.clock(r), r.life
	s.at(simTimeout, func() {
		s.awake(r, func() {
			if life == r.life {
				r.lease = r.lease.giveUp(f)
			}
		})
	})
	decide := func() {
		d := s.take(engine.Take{Cost: 1, Extra: want})
		s.debited += d.Admitted
		s.reply(r, life, d.Admitted, func() { s.arrived(r, f, &d, sent) })
	}
	s.send(decide)
	if s.loss > 0 && s.rand.IntN(s.loss) == 0 {
		s.send(decide)
	}
}

// arrived is the answer to f at r, which has begun it at sent by its clock.
func (s *simulation) arrived(r *simReplica, f uint32, d *engine.Decision, sent engine.Micros) {
	if d.Admitted == 0 {
		r.lease, r.storeLeft = r.lease.giveUp(f), d.Left
		return
	}
	keep := keepable(d.Admitted, d.Left)
	g := newGrant(d, keep, sent, s.clock(r), grantTTL)
	surplus := g
	surplus.left = d.Admitted - keep
	var stale grant
	r.lease, stale = r.lease.receive(f, g)
	s.refund(stale, surplus)
	r.storeLeft, r.lastGrant = subtract(d.Left, keep), keep
}

// refund sends grants back. Nothing is sent twice.
func (s *simulation) refund(grants ...grant) {
	for _, g := range grants {
		if g.left == 0 {
			continue
		}
		s.flying += g.left
		s.send(func() {
			s.flying -= g.left
			before := s.take(engine.Take{Count: 1, Cost: 0})
			s.give(engine.Take{Cost: 1, Count: g.left, Window: g.window})
			after := s.take(engine.Take{Count: 1, Cost: 0})
			s.returned += after.Left - before.Left
			s.lost += g.left - (after.Left - before.Left) // its window is over, or the bucket is full
		}, g.left)
	}
}

// send sends a message to the store, with hits that are lost if it is.
func (s *simulation) send(arrives func(), hits ...uint64) {
	if s.loss > 0 && s.rand.IntN(s.loss) == 0 {
		for _, n := range hits {
			s.flying -= n
			s.lost += n
		}
		return
	}
	s.at(s.delay(), arrives)
}

// reply sends a message with hits to r. They are lost if it has died since it asked, in the given life.
func (s *simulation) reply(r *simReplica, life int, hits uint64, arrives func()) {
	lost := func() { s.lost += hits }
	if s.loss > 0 && s.rand.IntN(s.loss) == 0 {
		lost()
		return
	}
	s.flying += hits
	s.at(s.delay(), func() {
		if life != r.life {
			s.flying -= hits
			lost()
			return
		}
		if r.hangs <= s.now {
			s.flying -= hits
			arrives()
			return
		}
		s.at(r.hangs-s.now, func() {
			s.flying -= hits
			if life != r.life {
				lost()
				return
			}
			arrives()
		})
	})
}

func (s *simulation) delay() engine.Micros {
	most := pick(s, int64(20), 1000, 1000, 1000, 20_000, 20_000, 3_000_000)
	return engine.Micros(s.rand.Int64N(most))
}

// trouble is that a replica dies, or hangs for a while, or that there is a quiet time.
func (s *simulation) trouble() {
	r := s.replicas[s.rand.IntN(len(s.replicas))]
	if s.rand.IntN(2) == 0 {
		s.lost += r.lease.held.left
		*r = simReplica{offset: engine.Micros(s.rand.Int64N(1e12)), drift: r.drift, life: r.life + 1, storeLeft: s.limit.Hits}
	} else {
		r.hangs = s.now + engine.Micros(s.rand.Int64N(3*int64(simSecond)))
	}
	s.at(engine.Micros(s.rand.Int64N(int64(3*simSecond))), s.trouble)
}

func (s *simulation) states() []*engine.State { return []*engine.State{&s.state} }

func (s *simulation) take(t engine.Take) engine.Decision {
	return engine.Limits{s.limit}.Take(s.states(), s.now, t)
}

func (s *simulation) give(t engine.Take) { engine.Limits{s.limit}.Refund(s.states(), s.now, t) }

func (s *simulation) windowNow() int64 { return int64(s.now - s.now%s.limit.Window) }

// admit counts hits that were admitted now.
func (s *simulation) admit(hits uint64) {
	if w := s.windowNow(); w != s.window {
		s.window, s.inWindow = w, 0
	}
	s.admitted += hits
	s.inWindow += hits
	if s.limit.Algorithm == engine.FixedWindow && s.inWindow > s.limit.Hits {
		s.fail("%d hits in a window of %d", s.inWindow, s.limit.Hits)
	}
}

// check checks that every hit that the store has debited is in one place.
func (s *simulation) check() {
	held := uint64(0)
	for _, r := range s.replicas {
		held += r.lease.held.left
	}
	if are := s.admitted + s.returned + s.lost + s.flying + held; are != s.debited {
		s.fail("the store has debited %d hits, and there are %d: %d admitted, %d returned, %d lost, %d in messages, %d held",
			s.debited, are, s.admitted, s.returned, s.lost, s.flying, held)
	}
}

func (s *simulation) fail(format string, args ...any) {
	if s.wrong == "" {
		s.wrong = fmt.Sprintf(format, args...)
	}
}

// simEvent is something that happens at a time; what happens at the same time does so in any order.
type simEvent struct {
	at      engine.Micros
	nth     uint64
	happens func()
}

// simQueue is a heap of events.
type simQueue []simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].nth < q[j].nth
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *simQueue) Push(x any) { *q = append(*q, x.(simEvent)) }

// Pop implements heap.Interface.
func (q *simQueue) Pop() any { //nolint:ireturn // as the interface has it
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}
