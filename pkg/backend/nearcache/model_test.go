package nearcache

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The model is three replicas, a store, the messages between them and the time, and everything that may happen to them,
// one step after another. A breadth-first search visits every state that any order of steps leads to. In none of them may
// more be admitted in a window than the limit says. The replicas' steps are those of lease.go, the store's those of
// pkg/engine; what is here is only who may take which step when.
//
// A replica that dies without coming back, a message that is lost and a process that hangs are orders in which some steps
// are never taken, and so need none of their own.

const (
	modelTick    engine.Micros = 1_000_000
	modelWindow                = 2 // ticks
	modelWindows               = 2 // that are gone into
	modelTicks                 = 3 // of the time
	modelStart                 = 10 * modelWindow * modelTick
	modelOffset                = 12_345 * modelTick // the replicas' clocks are not the store's
	modelTTL                   = 2 * modelTick
	modelLate                  = 2 // up to this limit replies may also come late
)

// modelGrant is a grant without what is only reported. Its end is in ticks, rounded up, since nothing happens between two.
type modelGrant struct{ left, window, ends uint8 }

// modelCall is a refill between a replica and the store.
type modelCall struct {
	number  uint8 // 0: there is none
	decided bool
	at      uint8 // the time at which the replica sent it
	grant   modelGrant
}

// modelReplica is a lease, the call for its latest refill, and one that came before or comes twice.
type modelReplica struct {
	now, next      modelGrant
	asked, refills uint8
	call, other    modelCall
}

// modelState is all of it.
type modelState struct {
	time     uint8 // ticks since the start
	count    uint8 // of the store's window
	begun    bool  // the store has a state of this window
	spent    uint8 // admitted in this window
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
	return lease{now: r.now.unpack(), next: r.next.unpack(), asked: uint32(r.asked), refills: uint32(r.refills)}
}

// set stores l. Only the equality of refill numbers matters, so they are kept small.
func (r *modelReplica) set(l lease) {
	r.now, r.next = packGrant(l.now), packGrant(l.next)
	r.asked, r.refills = uint8(l.asked), uint8(l.refills)
}

// renumber counts the numbers of r from 1 again.
func (r *modelReplica) renumber() {
	used := []uint8{r.asked, r.call.number, r.other.number}
	slices.Sort(used)
	used = slices.Compact(used)
	rank := func(n uint8) uint8 {
		if n == 0 {
			return 0
		}
		i, _ := slices.BinarySearch(used, n)
		if used[0] != 0 {
			i++
		}
		return uint8(i)
	}
	r.asked, r.call.number, r.other.number = rank(r.asked), rank(r.call.number), rank(r.other.number)
	r.refills = max(r.asked, r.call.number, r.other.number)
}

// store runs f on the store's state.
func (s *modelState) store(hits uint64, f func(engine.Limits, []*engine.State, engine.Micros) engine.Decision) engine.Decision {
	limits, now := engine.Limits{modelLimit(hits)}, storeTime(s.time)
	state := new(engine.State)
	if s.begun {
		limits.Take([]*engine.State{state}, now, engine.Take{Cost: 1, Count: hits})
		limits.Give([]*engine.State{state}, now, engine.Take{Cost: 1, Count: hits - uint64(s.count)})
	}
	d := f(limits, []*engine.State{state}, now)
	after := limits.Look([]*engine.State{state}, now, engine.Take{Count: 1})
	s.count, s.begun = uint8(hits-after.Left), !state.Empty()
	return d
}

// model is a search under way.
type model struct {
	hits    uint64
	others  int   // late or doubled messages at a time, at most
	gives   uint8 // hits of a window on their way back at a time, at most
	seen    map[modelState]struct{}
	queue   []modelState
	steps   int
	wrong   string
	touched modelState
}

// reach adds a state that a step leads to.
func (m *model) reach(s modelState, i int, step string) {
	m.steps++
	if uint64(s.spent) > m.hits && m.wrong == "" {
		m.wrong = fmt.Sprintf("%s leads from\n%+v\nto\n%+v", step, m.touched, s)
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
	if others > m.others || slices.Max(s.gives[:]) > m.gives {
		return
	}
	slices.SortFunc(s.replicas[:], compareReplicas) // which is which does not matter
	if _, ok := m.seen[s]; !ok {
		m.seen[s] = struct{}{}
		m.queue = append(m.queue, s)
	}
}

// forget merges states that nothing can tell apart: a grant that has ended is like any other one of its window, and
// what belongs to a window that has ended does not affect the count of the next one, as backendtest shows.
func (s *modelState) forget() {
	window := s.time / modelWindow
	for i := range s.replicas {
		r := &s.replicas[i]
		for _, g := range []*modelGrant{&r.now, &r.next, &r.call.grant, &r.other.grant} {
			if g.unpack().live(replicaTime(s.time)) {
				continue
			}
			if g.ends = 0; g.window < window {
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

func (r *modelReplica) key() [20]uint8 {
	flag := func(b bool) uint8 {
		if b {
			return 1
		}
		return 0
	}
	c, o := &r.call, &r.other
	return [20]uint8{
		r.now.left, r.now.window, r.now.ends, r.next.left, r.next.window, r.next.ends, r.asked, r.refills,
		c.number, flag(c.decided), c.at, c.grant.left, c.grant.window, c.grant.ends,
		o.number, flag(o.decided), o.at, o.grant.left, o.grant.window, o.grant.ends,
	}
}

// expand takes every step that s allows.
func (m *model) expand(s modelState) {
	m.touched = s
	if s.time+1 < modelTicks {
		next := s
		if next.time++; next.time%modelWindow == 0 {
			next.spent, next.count, next.begun = 0, 0, false
		}
		m.reach(next, -1, "time")
	}
	direct := s
	d := direct.store(m.hits, func(l engine.Limits, st []*engine.State, now engine.Micros) engine.Decision {
		return l.Take(st, now, engine.Take{Cost: 1, Count: 1})
	})
	direct.spent += uint8(d.Admitted)
	m.reach(direct, -1, "asking the store")
	for w := range s.gives {
		if s.gives[w] > 0 {
			m.give(s, uint8(w))
		}
	}
	for i := range s.replicas {
		if i > 0 && s.replicas[i] == s.replicas[i-1] { // what the one does the other does too
			continue
		}
		m.local(s, i)
		m.messages(s, i)
	}
}

// give gives back one of the hits that are on their way: whether they arrive one by one or together does not matter.
func (m *model) give(s modelState, window uint8) {
	s.gives[window]--
	s.store(m.hits, func(l engine.Limits, st []*engine.State, now engine.Micros) engine.Decision {
		return l.Give(st, now, engine.Take{Cost: 1, Count: 1, Window: windowStart(window)})
	})
	m.reach(s, -1, "giving back")
}

// local takes the steps of a replica for which no message is needed.
func (m *model) local(s modelState, i int) {
	now := replicaTime(s.time)
	l := s.replicas[i].lease()
	if l.mayAsk() {
		next := s
		r := &next.replicas[i]
		asked, f := l.ask()
		r.set(asked)
		if r.call.number != 0 {
			r.other = r.call
		}
		r.call = modelCall{number: uint8(f.number), at: s.time}
		m.reach(next, i, "asking for a refill")
	} else if l.asked != 0 {
		next := s
		r := &next.replicas[i]
		r.set(l.lose(flight{number: l.asked}))
		if m.hits <= modelLate {
			m.reach(next, i, "giving up a reply, which may come late")
		}
		r.call = modelCall{}
		m.reach(next, i, "losing a reply")
	}
	for hits := uint64(1); hits <= 2; hits++ {
		if spent, _, ok := l.spend(hits, now); ok {
			next := s
			next.replicas[i].set(spent)
			next.spent += uint8(hits)
			m.reach(next, i, "spending")
		}
	}
	left, over := l.expire(now)
	m.back(s, i, left, over, "expiring")
	left, over = l.empty()
	m.back(s, i, left, over, "emptying")
	next := s
	next.replicas[i] = modelReplica{}
	m.reach(next, i, "dying and coming back")
}

// back makes a replica give back what it took out of its lease.
func (m *model) back(s modelState, i int, l lease, over [2]grant, step string) {
	s.replicas[i].set(l)
	for _, g := range over {
		if g.left > 0 {
			s.gives[windowIndex(g.window)] += uint8(g.left)
		}
	}
	m.reach(s, i, step)
}

// messages takes the steps of a replica's calls: the store decides them, and what it decided arrives, once or twice.
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
			l, _, _ := r.lease().receive(flight{number: uint32(c.number)}, c.grant.unpack())
			r.set(l)
			m.reach(next, i, "a reply that may come again")
			*call(r) = modelCall{}
			m.reach(next, i, "a reply")
		}
	}
}

// decide makes the store decide on a refill of the given number of hits. A refill that grants nothing is equivalent to
// a lost one.
func (m *model) decide(s modelState, i int, call func(*modelReplica) *modelCall, want uint64) {
	c := call(&s.replicas[i])
	d := s.store(m.hits, func(l engine.Limits, st []*engine.State, now engine.Micros) engine.Decision {
		return l.Take(st, now, engine.Take{Cost: 1, Extra: want})
	})
	g := packGrant(granted(&d, d.Admitted, replicaTime(c.at), replicaTime(s.time), modelTTL))
	*c = modelCall{number: c.number, decided: true, grant: g}
	if g.left == 0 {
		*c = modelCall{}
	}
	m.reach(s, i, "deciding on a refill")
}

// TestModel visits every state for each limit.
func TestModel(t *testing.T) {
	t.Parallel()
	for hits := uint64(1); hits <= ModelLimits; hits++ {
		m := &model{hits: hits, gives: 2, seen: map[modelState]struct{}{}}
		if hits == 1 {
			m.others = 1
		}
		if hits > 4 {
			m.gives = 1
		}
		m.reach(modelState{}, -1, "the beginning")
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
			t.Fatalf("limit %d: more is admitted than the limit says: %s", hits, m.wrong)
		}
	}
}
