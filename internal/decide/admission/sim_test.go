package admission

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// machine is a simulated process with one processor, on virtual time: the costs of the steps of a call, and the latency of the store.
type machine struct {
	read, work, shed, fallback time.Duration // processor time to receive, to decide, to fail after the headers, to fall back
	store                      time.Duration // latency between the work on a call and its answer, without processor time
}

// load describes the simulated calls: rate calls per second, on connections, in domains of which the first is quiet.
type load struct {
	rate     float64
	quiet    float64 // calls per second in a separate domain
	shared   bool    // the quiet domain uses the same connections
	patience time.Duration
}

type result struct {
	offered, good, late, fallback, failed int
	quietOffered, quietGood               int
	limit, laps                           int
	longest                               time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("offered %d, good %.2f late %.2f fallback %.2f failed %.2f; quiet %d/%d; limit %d, laps %d, longest %s", r.offered,
		float64(r.good)/float64(r.offered), float64(r.late)/float64(r.offered), float64(r.fallback)/float64(r.offered), float64(r.failed)/float64(r.offered),
		r.quietGood, r.quietOffered, r.limit, r.laps, r.longest)
}

type simCall struct {
	w     waiting
	at    time.Duration
	quiet bool
	due   time.Duration // end of the store's latency
}

// play simulates a load for a duration, after a warm-up that does not count.
func (m machine) play(l load, warm, d time.Duration, seed uint64) (res result) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	c := newCore()
	sources := make([]Source, 8)
	var now, nextNoisy, nextQuiet time.Duration
	inStore := []*simCall{}
	inFlight := 0
	byWait := map[*waiting]*simCall{}
	lap := time.Duration(0)
	count := func(s *simCall, v string) {
		if s.at < warm {
			return
		}
		switch v {
		case "good":
			if now-s.at > l.patience {
				res.late++
				return
			}
			res.good++
			if s.quiet {
				res.quietGood++
			}
		case "fallback":
			if now-s.at > l.patience {
				res.late++
				return
			}
			res.fallback++
		default:
			res.failed++
		}
	}
	for now < warm+d {
		began := now
		var spent time.Duration
		// calls that got a turn in the last round
		var worked []*simCall
		give := func(w *waiting, v Verdict) {
			s := byWait[w]
			delete(byWait, w)
			switch v {
			case Proceed:
				inFlight++
				spent += m.work
				worked = append(worked, s)
			case Fallback:
				spent += m.fallback
				count(s, "fallback")
			case Reject:
				spent += m.shed
				count(s, "failed")
			}
		}
		c.round(now, lap, inFlight, give)
		// calls that have arrived since
		for {
			quiet := nextQuiet < nextNoisy && l.quiet > 0
			at := nextNoisy
			if quiet {
				at = nextQuiet
			}
			if at > now {
				break
			}
			s := &simCall{at: at, quiet: quiet}
			if quiet {
				nextQuiet += time.Duration(rnd.ExpFloat64() / l.quiet * 1e9)
			} else {
				nextNoisy += time.Duration(rnd.ExpFloat64() / l.rate * 1e9)
			}
			if s.at >= warm {
				res.offered++
				if quiet {
					res.quietOffered++
				}
			}
			src := &sources[rnd.IntN(4)]
			if quiet && !l.shared {
				src = &sources[4+rnd.IntN(4)]
			}
			if !c.letIn(src) {
				spent += m.shed
				count(s, "failed")
				continue
			}
			spent += m.read
			s.w = waiting{Call: Call{Domain: 1, Cost: 1, Source: src}, turn: make(chan Verdict, 1)}
			if quiet {
				s.w.Domain = 2
			}
			byWait[&s.w] = s
			s.w.Delay = 0
			c.enqueue(now+spent, now+spent+l.patience, &s.w) // the time that its headers waited is unknown
		}
		now += max(spent, 20*time.Microsecond)
		for _, s := range worked {
			s.due = now + m.store
			inStore = append(inStore, s)
		}
		kept := inStore[:0]
		for _, s := range inStore {
			if s.due <= now {
				inFlight--
				count(s, "good")
			} else {
				kept = append(kept, s)
			}
		}
		inStore = kept
		lap = now - began
		if lap <= 20*time.Microsecond { // the dispatcher rests
			now += 80 * time.Microsecond
		}
		res.laps++
		res.limit = c.limit.calls
		res.longest = max(res.longest, lap)
	}
	return res
}

// TestSimulated checks the throughput of a simulated overloaded process with one processor. docs/reliability.md has measurements of a
// real one.
func TestSimulated(t *testing.T) {
	const us = time.Microsecond
	for name, m := range map[string]machine{
		"in memory": {read: 12 * us, work: 38 * us, shed: 6 * us, fallback: 20 * us},
		"a store":   {read: 12 * us, work: 38 * us, shed: 6 * us, fallback: 20 * us, store: 2 * time.Millisecond},
	} {
		peak := float64(time.Second) / float64(m.read+m.work)
		for k, want := range map[float64]float64{0.5: 0.49, 0.9: 0.88, 1: 0.95, 1.3: 0.7, 2: 0.6, 3: 0.5, 5: 0.3} {
			r := m.play(load{rate: k * peak, patience: 20 * time.Millisecond}, time.Second, 3*time.Second, 1)
			t.Logf("%s, %g × the peak: %v", name, k, r)
			if got := float64(r.good) / 3 / peak; got < want {
				t.Errorf("%s, %g × the peak: %.2f of it is decided in time, want %g", name, k, got, want)
			}
		}
		for _, k := range []float64{2, 5} {
			r := m.play(load{rate: k * peak, quiet: peak / 10, patience: 20 * time.Millisecond}, time.Second, 3*time.Second, 1)
			if share := float64(r.quietGood) / float64(r.quietOffered); share < 0.95 {
				t.Errorf("%s, a quiet domain beside %g × the peak has %.2f decided, want 0.95", name, k, share)
			}
		}
	}
}

// TestBytes checks that the size of a waiting call counts until its turn, even if the call's memory is reused then.
func TestBytes(t *testing.T) {
	c := newCore()
	c.limit.calls = minInFlight
	for range 2 * minInFlight {
		c.enqueue(0, 20*time.Millisecond, &waiting{Call: Call{Cost: 1, Size: 1 << 20}})
	}
	c.enqueue(0, time.Second, &waiting{Call: Call{Cost: 1, Size: 100}})
	c.round(19*time.Millisecond, time.Millisecond, minInFlight, func(w *waiting, _ Verdict) { w.Call = Call{} }) // as Wait does
	if c.queue.calls != 1 || c.queue.bytes != 100 {
		t.Errorf("%d calls with %d bytes wait, want 1 with 100", c.queue.calls, c.queue.bytes)
	}
}

// TestEnter checks that a call proceeds immediately unless it is late, other calls wait, or the limit in flight is reached.
func TestEnter(t *testing.T) {
	g := New(time.Second)
	for late, want := range map[time.Duration]bool{0: true, startsLate - 1: true, startsLate: false} {
		if got := g.Enter(late); got != want {
			t.Errorf("a call that is %v late enters: %t, want %t", late, got, want)
		}
	}
	g.busy.Store(true)
	if g.Enter(0) {
		t.Error("a call overtakes those that wait")
	}
	g.busy.Store(false)
	g.limit.Store(2)
	if g.Enter(0) {
		t.Error("a third call enters, where two may")
	}
}
