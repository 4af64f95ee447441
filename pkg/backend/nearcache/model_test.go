package nearcache

import (
	"flag"
	"fmt"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The model consists of three replicas, a store, the messages between them, and time. A breadth-first search visits every state that any
// order of steps reaches. The replicas' steps are those of lease.go, and the store's are those of pkg/engine; this file only determines
// which steps are possible when.
//
// Each step must account for every hit that the store has counted in this window: it was admitted, a replica holds it, or it is in a
// reply or a refund in progress. Only the death of a replica and the loss of a message may lose hits, and no step may create any. So a
// window never admits more than the limit, and every hit that is not lost is spent or refunded.
//
// Refills bring one hit or two. Leases of any size are refunded: by emptying, by ending during a refill, or after they expired. Up to the
// limit modelLate, each replica may have an abandoned refill in addition to a newer one, or two abandoned ones; up to the flag limits,
// only one of the three may. More are left out: an abandoned refill takes hits from the store and refunds them regardless of its
// replica's state, so a third one only adds orders of steps with the same result. Also left out are
//  - duplicate replies, because a call of a store returns once;
//  - replicas that die and never restart, and processes that hang, because these are orders in which some steps never occur;
//  - the admitted hits and their replicas, because they affect no step;
//  - resets, which TestResetDropsRefill covers, and clocks of different speed, which TestLeaseBound covers.

const (
	modelTick    engine.Micros = 1_000_000
	modelWindow                = 2 // ticks
	modelWindows               = 2 // number of windows that the search covers
	modelTicks                 = 3 // duration of the search
	modelStart                 = 10 * modelWindow * modelTick
	modelOffset                = 12_345 * modelTick // offset of the replicas' clocks from the store's
	modelTTL                   = 2 * modelTick
	modelLate                  = 2 // up to this limit, each replica may have late replies
)

// modelGrant is a grant without fields that are only reported. Its end is in ticks, rounded up, because nothing happens between two
// ticks.
type modelGrant struct{ left, window, ends uint8 }

// modelCall is a refill between a replica and the store.
type modelCall struct {
	number  uint8 // 0 if there is none
	decided bool
	at      uint8 // time at which the replica sent it
	grant   modelGrant
}

// modelReplica is a lease, the call for its latest refill, and an abandoned call.
type modelReplica struct {
	held           modelGrant
	asked, refills uint8
	call, other    modelCall
}

// modelState is the complete state of the model.
type modelState struct {
	time     uint8 // ticks since the start
	count    uint8 // hits counted in the store's window
	begun    bool  // the store has a state of this window
	gives    [modelWindows]uint8
	replicas [3]modelReplica
}

func modelLimit(hits uint64) engine.Limit {
	return engine.Limit{Algorithm: engine.FixedWindow, Hits: hits, Window: modelWindow * modelTick}
}

func storeTime(ticks uint8) engine.Micros   { return modelStart + engine.Micros(ticks)*modelTick }
func replicaTime(ticks uint8) engine.Micros { return modelOffset + engine.Micros(ticks)*modelTick }

func windowIndex(start int64) uint8 {
	return uint8((engine.Micros(start) - modelStart) / (modelWindow * modelTick))
}

func windowStart(index uint8) int64 {
	return int64(modelStart + engine.Micros(index)*modelWindow*modelTick)
}

func packGrant(g grant) modelGrant {
	if g.left == 0 {
		return modelGrant{}
	}
	ends := (max(g.ends-modelOffset, 0) + modelTick - 1) / modelTick
	return modelGrant{uint8(g.left), windowIndex(g.window), uint8(ends)}
}

func (g modelGrant) unpack() grant {
	if g.left == 0 {
		return grant{}
	}
	return grant{left: uint64(g.left), window: windowStart(g.window), ends: replicaTime(g.ends)}
}

func (r *modelReplica) lease() lease {
	return lease{held: r.held.unpack(), asked: uint32(r.asked), refills: uint32(r.refills)}
}

// set stores l. It keeps refill numbers small, because only their equality matters.
func (r *modelReplica) set(l lease) {
	r.held = packGrant(l.held)
	r.asked, r.refills = uint8(l.asked), uint8(l.refills)
}

// renumber renumbers the refills of r from 1. Abandoned calls are equivalent, regardless of when they were sent.
func (r *modelReplica) renumber() {
	r.other.at, r.other.grant.ends = 0, 0
	if r.asked == 0 {
		if r.call.at, r.call.grant.ends = 0, 0; compareCalls(&r.call, &r.other) > 0 {
			r.call, r.other = r.other, r.call
		}
	}
	r.refills = 0
	for _, c := range [...]*modelCall{&r.other, &r.call} {
		if c.number != 0 {
			r.refills++
			c.number = r.refills
		}
	}
	if r.asked != 0 {
		r.asked = r.call.number
	}
}

// storeCall is a call of the store in some state, and storeAnswer its result.
type (
	storeCall struct {
		time, count uint8
		begun       bool
		mode        storeMode
		window      uint8 // window of the refund
		want        uint8 // hits that a refill requests
	}
	storeAnswer struct {
		count    uint8
		begun    bool
		decision engine.Decision
	}
	storeMode uint8
)

const (
	storeTake storeMode = iota
	storeRefill
	storeGive
)

// store applies c to the store, and returns its decision.
func (m *model) store(s *modelState, c storeCall) engine.Decision {
	c.time, c.count, c.begun = s.time, s.count, s.begun
	a, ok := m.memo[c]
	if !ok {
		a = c.decide(m.hits)
		m.memo[c] = a
	}
	s.count, s.begun = a.count, a.begun
	return a.decision
}

// decide applies c with the engine.
func (c storeCall) decide(hits uint64) (a storeAnswer) {
	limits, now := engine.Limits{modelLimit(hits)}, storeTime(c.time)
	states := []*engine.State{new(engine.State)}
	if c.begun {
		limits.Take(states, now, engine.Take{Cost: 1, Count: hits})
		limits.Refund(states, now, engine.Take{Cost: 1, Count: hits - uint64(c.count)})
	}
	switch c.mode {
	case storeTake:
		a.decision = limits.Take(states, now, engine.Take{Cost: 1, Count: 1})
	case storeRefill:
		a.decision = limits.Take(states, now, engine.Take{Cost: 1, Extra: uint64(c.want)})
	case storeGive:
		a.decision = limits.Refund(states, now, engine.Take{Cost: 1, Count: 1, Window: windowStart(c.window)})
	}
	after := limits.Peek(states, now, engine.Take{Count: 1})
	a.count, a.begun = uint8(hits-after.Left), !states[0].Empty()
	return a
}

// model is a search in progress.
type model struct {
	hits   uint64
	others int // maximum number of replicas with late replies
	seen   map[modelState]struct{}
	queue  []modelState
	steps  int
	wrong  string
	from   modelState // state before the current step
	owed   int        // owed hits of from
	memo   map[storeCall]storeAnswer
}

// reach adds the state after a step. The step admitted the given number of hits, and must not lose any.
func (m *model) reach(s modelState, i int, step string, admitted int) {
	if s == m.from {
		return
	}
	if s.time == m.from.time && s.owed() != m.owed+admitted {
		m.fail(&s, step+" gains or loses hits")
	}
	m.fault(s, i, step)
}

// fault adds the state after a step that may lose hits.
func (m *model) fault(s modelState, i int, step string) {
	m.steps++
	if uint64(s.count) > m.hits || s.owed() < 0 || s.time == m.from.time && s.owed() < m.owed {
		m.fail(&s, step+" gains hits")
	}
	if i >= 0 {
		s.replicas[i].renumber()
	}
	s.forget()
	others := 0
	for i := range s.replicas {
		if s.replicas[i].other.number != 0 {
			others++
		}
	}
	if others > m.others {
		return
	}
	slices.SortFunc(s.replicas[:], compareReplicas) // replicas are interchangeable
	if _, ok := m.seen[s]; !ok {
		m.seen[s] = struct{}{}
		m.queue = append(m.queue, s)
	}
}

func (m *model) fail(s *modelState, what string) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf("%s, from\n%+v\nto\n%+v", what, m.from, *s)
	}
}

// owed returns the number of hits counted in this window that no replica holds or refunds: they were admitted, or lost.
func (s *modelState) owed() int {
	window := s.time / modelWindow
	sum := int(s.gives[window])
	for i := range s.replicas {
		r := &s.replicas[i]
		if r.held.window == window {
			sum += int(r.held.left)
		}
		for _, c := range [...]*modelCall{&r.call, &r.other} {
			if c.decided && c.grant.window == window {
				sum += int(c.grant.left)
			}
		}
	}
	return int(s.count) - sum
}

// forget merges equivalent states. All expired grants of a window are equivalent, and hits of past windows do not affect the count of the
// next one, as backendtest shows. If a replica still holds such hits, one hit represents them.
func (s *modelState) forget() {
	window := s.time / modelWindow
	for i := range s.replicas {
		r := &s.replicas[i]
		for _, g := range []*modelGrant{&r.held, &r.call.grant, &r.other.grant} {
			if g.unpack().live(replicaTime(s.time)) {
				continue
			}
			switch g.ends = 0; {
			case g.window == window:
			case g == &r.held:
				g.left = min(g.left, 1)
			default:
				*g = modelGrant{}
			}
		}
	}
	for w := range window {
		s.gives[w] = 0
	}
}

func compareReplicas(a, b modelReplica) int {
	x, y := a.key(), b.key()
	return slices.Compare(x[:], y[:])
}

func (r *modelReplica) key() [17]uint8 {
	k := [17]uint8{r.held.left, r.held.window, r.held.ends, r.asked, r.refills}
	c, o := r.call.key(), r.other.key()
	copy(k[5:], c[:])
	copy(k[11:], o[:])
	return k
}

func (c *modelCall) key() [6]uint8 {
	decided := uint8(0)
	if c.decided {
		decided = 1
	}
	return [6]uint8{min(c.number, 1), decided, c.at, c.grant.left, c.grant.window, c.grant.ends}
}

func compareCalls(a, b *modelCall) int {
	x, y := a.key(), b.key()
	return slices.Compare(x[:], y[:])
}

// expand takes every step possible in s.
func (m *model) expand(s modelState) {
	m.from, m.owed = s, s.owed()
	if s.time+1 < modelTicks {
		next := s
		if next.time++; next.time%modelWindow == 0 {
			next.count, next.begun = 0, false
		}
		m.reach(next, -1, "time", 0)
	}
	direct := s
	d := m.store(&direct, storeCall{mode: storeTake})
	m.reach(direct, -1, "asking the store", int(d.Admitted))
	for w := range s.gives {
		if s.gives[w] > 0 {
			m.give(s, uint8(w))
		}
	}
	for i := range s.replicas {
		if i > 0 && s.replicas[i] == s.replicas[i-1] { // equal replicas have equal steps
			continue
		}
		m.local(s, i)
		m.messages(s, i)
	}
}

// give refunds one of the hits in refunds in progress. One by one is equivalent to several together.
func (m *model) give(s modelState, window uint8) {
	s.gives[window]--
	m.store(&s, storeCall{mode: storeGive, window: window})
	m.reach(s, -1, "refunding", 0)
}

// local takes the steps of a replica that need no message.
func (m *model) local(s modelState, i int) {
	now := replicaTime(s.time)
	l := s.replicas[i].lease()
	if l.asked == 0 && s.replicas[i].call.number == 0 {
		next := s
		r := &next.replicas[i]
		l = l.ask()
		r.set(l)
		r.call = modelCall{number: uint8(l.asked), at: s.time}
		m.reach(next, i, "asking for a refill", 0)
	} else if l.asked != 0 {
		next := s
		r := &next.replicas[i]
		r.set(l.giveUp(l.asked))
		m.reach(next, i, "giving up a reply, which may come late", 0)
		r.call = modelCall{}
		m.fault(next, i, "losing a call or its reply")
	}
	for hits := uint64(1); hits <= 2; hits++ {
		if spent, ok := l.spend(hits, now); ok {
			next := s
			next.replicas[i].set(spent)
			m.reach(next, i, "spending", int(hits))
		}
	}
	left, unspent := l.expire(now)
	m.back(s, i, left, unspent, "expiring")
	left, unspent = l.empty()
	m.back(s, i, left, unspent, "emptying")
	left, unspent = l.end()
	m.back(s, i, left, unspent, "ending")
	if left.asked != 0 {
		m.fail(&s, "a lease that has ended takes a reply")
	}
	next := s
	next.replicas[i] = modelReplica{}
	m.fault(next, i, "dying and coming back")
}

// back makes a replica refund the hits removed from its lease.
func (m *model) back(s modelState, i int, l lease, unspent grant, step string) {
	s.replicas[i].set(l)
	s.refund(unspent)
	m.reach(s, i, step, 0)
}

func (s *modelState) refund(g grant) {
	if g.left > 0 {
		s.gives[windowIndex(g.window)] += uint8(g.left)
	}
}

// messages takes the steps of a replica's calls: the store's decision, and the arrival of the reply.
func (m *model) messages(s modelState, i int) {
	for which := range 2 {
		call := func(r *modelReplica) *modelCall { return [...]*modelCall{&r.call, &r.other}[which] }
		c := *call(&s.replicas[i])
		switch {
		case c.number == 0:
		case !c.decided:
			for want := uint64(1); want <= 2; want++ {
				m.decide(s, i, call, want)
			}
		default:
			next := s
			r := &next.replicas[i]
			l, stale := r.lease().receive(uint32(c.number), c.grant.unpack())
			r.set(l)
			next.refund(stale)
			*call(r) = modelCall{}
			m.reach(next, i, "a reply", 0)
		}
	}
}

// decide applies a refill of the given number of hits to the store. A refill that grants nothing is equivalent to a lost one.
func (m *model) decide(s modelState, i int, call func(*modelReplica) *modelCall, want uint64) {
	c := call(&s.replicas[i])
	d := m.store(&s, storeCall{mode: storeRefill, want: uint8(want)})
	g := packGrant(newGrant(&d, d.Admitted, replicaTime(c.at), replicaTime(s.time), modelTTL))
	*c = modelCall{number: c.number, decided: true, grant: g}
	if g.left == 0 {
		*c = modelCall{}
	}
	m.reach(s, i, "deciding on a refill", 0)
}

var modelLimits = flag.Uint64("limits", 3, "up to which limit TestModel goes; A7 of make chaos goes up to 6, in seven times as long")

// TestModel searches all states for each limit.
func TestModel(t *testing.T) {
	t.Parallel()
	for hits := uint64(1); hits <= *modelLimits; hits++ {
		m := &model{hits: hits, others: 1, seen: map[modelState]struct{}{}, memo: map[storeCall]storeAnswer{}}
		if hits <= modelLate {
			m.others = len(modelState{}.replicas)
		}
		m.fault(modelState{}, -1, "the beginning")
		for len(m.queue) > 0 && m.wrong == "" {
			s := m.queue[0]
			m.queue = m.queue[1:]
			m.expand(s)
			if len(m.seen) > 1_500_000 {
				t.Fatal("too many states")
			}
		}
		t.Logf("limit %d: %d states, %d steps", hits, len(m.seen), m.steps)
		if m.wrong != "" {
			t.Fatalf("limit %d: %s", hits, m.wrong)
		}
	}
}
