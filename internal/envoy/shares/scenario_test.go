package shares_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

// shop is the limit of examples/envoy-rlqs: 100 requests per second, and a burst of 200.
var shop = simLimit{Limit: shares.Limit{Hits: 100, Window: second, Burst: 200, Overdraft: true}}

// fleet returns a simulation with one client per demand, whose requests are even from the first second on. The i-th client is connected
// to replica i mod n. 0 replicas means one without a table.
func fleet(l simLimit, replicas int, demands ...float64) *sim {
	s := newSim(1, l, replicas, len(demands))
	parts := map[int]float64{}
	s.arrive = func(i int, mean float64) uint64 {
		parts[i] += mean
		n := uint64(parts[i] + 1e-9)
		parts[i] -= float64(n)
		return n
	}
	for i, c := range s.clients {
		c.demand, c.replica = demands[i], i%max(replicas, 1)
	}
	return s
}

// seconds simulates n seconds. It returns the requests of clients admitted in each second, in total and by client, and the total of
// denied ones.
func (s *sim) seconds(n int) (each []float64, perClient [][]float64, denied float64) {
	before := s.deniedAll()
	perClient = make([][]float64, len(s.clients))
	for range n {
		sum := 0.0
		for i, c := range s.clients {
			perClient[i] = append(perClient[i], -float64(c.envoy.Admitted))
		}
		s.run(s.now + second)
		for i, c := range s.clients {
			k := len(perClient[i]) - 1
			perClient[i][k] += float64(c.envoy.Admitted)
			sum += perClient[i][k]
		}
		each = append(each, sum)
	}
	return each, perClient, s.deniedAll() - before
}

func (s *sim) deniedAll() (sum float64) {
	for _, c := range s.clients {
		sum += float64(c.denied)
	}
	return sum
}

func show(xs []float64) string {
	var b strings.Builder
	for _, x := range xs {
		fmt.Fprintf(&b, "%.0f ", x)
	}
	return b.String()
}

// below checks that clients with a total demand below the limit are denied nothing for n seconds. above checks that clients with a larger
// demand use at least least per second together, and leastEach each.
func (s *sim) below(t *testing.T, what string, n int) {
	t.Helper()
	if each, _, denied := s.seconds(n); denied > 0 {
		t.Errorf("%s: %.0f requests below the limit were denied; admitted each second: %s", what, denied, show(each))
	}
}

func (s *sim) above(t *testing.T, what string, n int, least, leastEach float64) {
	t.Helper()
	each, per, _ := s.seconds(n)
	if got := slices.Min(each[1:]); got < least {
		t.Errorf("%s: %.0f were admitted in a second, want %.0f; in each: %s", what, got, least, show(each))
	}
	for i, p := range per {
		low := 0
		for _, x := range p[1:] {
			if low++; x >= leastEach {
				low = 0
			}
			if low > 1 {
				t.Errorf("%s: client %d was admitted less than %.0f for more than a second: %s", what, i, leastEach, show(p))
				break
			}
		}
	}
	if s.unbound > 1 {
		t.Errorf("%s: %.0f were admitted beyond the bound", what, s.unbound)
	}
}

// serves checks with below or above, whichever the clients' demand is.
func (s *sim) serves(t *testing.T, what string, n int, least, leastEach float64) {
	t.Helper()
	total := 0.0
	for _, c := range s.clients {
		total += c.demand
	}
	if total < s.limit.rate() {
		s.below(t, what, n)
	} else {
		s.above(t, what, n, least, leastEach)
	}
}

// name says whether clients have names.
func (s *sim) name(named bool) {
	for _, c := range s.clients {
		c.named = named
	}
}

// TestStart: from the first second on, clients below the limit are denied nothing, and clients above it use all of it, each its part.
func TestStart(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1, 2, 3} {
		name := fmt.Sprintf("%d replicas", replicas)
		fleet(shop, replicas, 45, 45).below(t, name, 60)
		fleet(shop, replicas, 30, 30, 30).below(t, name, 60)
		fleet(shop, replicas, 80, 80).above(t, name, 60, 95, 35)
		for late := range shares.Micros(6) { // the second client starts this many seconds later
			s := fleet(shop, replicas, 80, 0)
			s.run(s.now + late*second + second/2)
			s.clients[1].demand = 80
			s.above(t, fmt.Sprint(name, ", one is late by ", late), 60, 95, 35)
		}
	}
}

// TestDrains checks that the clients of a replica that closes its streams keep their parts until they have reported elsewhere, with and
// without names.
func TestDrains(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		for _, x := range []struct {
			name    string
			demands []float64
		}{
			{"both at one replica", []float64{40, 0, 40}},
			{"one at each", []float64{40, 40}},
			{"four", []float64{20, 20, 20, 20}},
		} {
			for phase := range shares.Micros(5) {
				for _, more := range []float64{1, 2} {
					s := fleet(shop, 2, x.demands...)
					for i, c := range s.clients {
						c.named = named
						c.demand = x.demands[i] * more
					}
					s.run(s.now + 20*second + phase*second)
					s.drain(0)
					name := fmt.Sprintf("%s, named %t, %.0f times, %d s after a report", x.name, named, more, phase)
					s.serves(t, name, 30, 90, 0)
				}
			}
		}
	}
}

// TestRolls is TestDrains for three replicas that are replaced one after another.
func TestRolls(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		for _, demand := range []float64{26, 52} {
			s := fleet(shop, 3, demand, demand, demand)
			s.name(named)
			s.run(s.now + 20*second)
			for i := range 3 {
				s.replicas = append(s.replicas, s.newReplica())
				s.drain(i)
				name := fmt.Sprintf("named %t, replica %d", named, i)
				s.serves(t, name, 12, 90, 0)
			}
		}
	}
}

// TestReplaced is TestDrains for a client whose stream ends, and which reconnects to the same replica or another one.
func TestReplaced(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1, 2} {
		for _, named := range []bool{true, false} {
			for _, demand := range []float64{45, 80} {
				s := fleet(shop, replicas, demand, demand)
				s.name(named)
				s.run(s.now + 20*second)
				for i := range 6 {
					c := s.clients[i%2]
					s.replicas[c.replica].bucket.Leave(s.now, c.client.ID)
					c.open, c.inbox = false, nil
					name := fmt.Sprintf("%d replicas, named %t, time %d", replicas, named, i)
					s.serves(t, name, 8, 90, 0)
				}
			}
		}
	}
}

// restart ends a client and its stream. After a while, another one takes its place at a replica.
func (s *sim) restart(i int, after shares.Micros, replica int) {
	old := s.clients[i]
	s.replicas[old.replica].bucket.Leave(s.now, old.client.ID)
	old.alive, old.open, old.inbox = false, false, nil
	s.run(s.now + after)
	c := s.join()
	c.demand, c.replica, c.named = old.demand, replica, old.named
	old.demand = 0
}

// TestRestarts is TestDrains for clients that restart one after another, and come back without a state.
func TestRestarts(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1, 2} {
		for _, demands := range [][]float64{{40}, {90}, {40, 40}, {30, 30, 30}, {20, 20, 20, 20}} {
			for _, after := range []shares.Micros{second / 2, second, 3 * second} {
				s := fleet(shop, replicas, demands...)
				s.run(s.now + 20*second)
				for round := range 2 {
					for i := range demands {
						last := len(s.clients) - len(demands) + i
						if round == 0 {
							last = i
						}
						s.restart(last, after, (s.clients[last].replica+1)%max(replicas, 1))
						s.below(t, fmt.Sprintf("%d replicas, %v, after %d ms, round %d, client %d", replicas, demands, after/1000, round, i), 10)
					}
				}
				if s.unbound > 1 {
					t.Errorf("%d replicas, %v: %.0f beyond the bound", replicas, demands, s.unbound)
				}
			}
		}
	}
}

// TestIdle: a client that was idle and one that starts then are denied nothing.
func TestIdle(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 1, 2} {
		for idle := range shares.Micros(6) {
			s := fleet(shop, replicas, 40, 0)
			s.run(s.now + 20*second)
			s.clients[0].demand = 0
			s.run(s.now + 18*second + idle*second)
			s.clients[1].demand = 1
			s.run(s.now + 1*second)
			s.clients[0].demand, s.clients[1].demand = 40, 40
			s.below(t, fmt.Sprintf("%d replicas, idle for %d s", replicas, 19+idle), 30)
		}
	}
}

// TestKilled checks that when a replica with all clients dies, no second falls below half of the demand, and the whole demand is admitted
// within 3 s after they have reconnected.
func TestKilled(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		for phase := range shares.Micros(5) {
			s := fleet(shop, 2, 40, 0, 40)
			s.name(named)
			s.run(s.now + 20*second + phase*second)
			s.replicas[0].dead = true
			for _, c := range s.clients {
				c.open, c.inbox = c.open && c.replica != 0, nil
			}
			each, _, _ := s.seconds(20)
			if slices.Min(each) < 40 || slices.Min(each[8:]) < 80 {
				t.Errorf("named %t, %d s after a report: %s", named, phase, show(each))
			}
		}
	}
}

// TestReturns checks that hits admitted while the store was lost are not paid back after it returns.
func TestReturns(t *testing.T) {
	t.Parallel()
	for _, f := range []shares.Fallback{shares.Lapse, shares.Deny, shares.Allow, shares.Keep} {
		for _, outage := range []shares.Micros{3, 12, 40} {
			for _, replicas := range []int{0, 2} {
				s := fleet(shop, replicas, 80, 80)
				s.fallback = f
				s.run(s.now + 20*second)
				s.store.down = true
				s.run(s.now + outage*second)
				s.store.down = false
				s.unbound, s.over = 0, 0
				s.above(t, fmt.Sprintf("fallback %d, outage of %d s, %d replicas", f, outage, replicas), 30, 94, 0)
			}
		}
	}
}

// TestBesideCallers checks that the bound applies to clients and RLS callers together, and that both use the limit.
func TestBesideCallers(t *testing.T) {
	t.Parallel()
	for _, calls := range []float64{60, 90, 120, 300} {
		l := shop
		l.Burst = 100
		s := fleet(l, 2, 2, 2, 2, 2)
		s.replicas[0].calls, s.replicas[1].calls = calls/2, calls/2
		s.run(s.now + 31*second)
		before := s.byRLS
		for range 6 {
			for _, c := range s.clients {
				c.demand = 200
			}
			s.run(s.now + 48*second/10)
			for _, c := range s.clients {
				c.demand = 2
			}
			s.run(s.now + 52*second/10)
		}
		t.Logf("RLS callers want %.0f: unbound %.0f, extra %.0f, peak %.0f, RLS %.1f/s", calls, s.unbound, s.extra, s.peak, (s.byRLS-before)/60)
		if s.unbound > 1 {
			t.Errorf("RLS callers want %.0f: %.0f were admitted beyond the bound", calls, s.unbound)
		}
	}
}

// TestRaised checks that clients follow a changed limit within a second, and that those below it are denied nothing.
func TestRaised(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{0, 2} {
		for _, demand := range []float64{90, 160} {
			s := fleet(shop, replicas, demand, demand)
			s.run(s.now + 20*second)
			l := shop
			l.Hits, l.Burst = 200, 400
			s.change(l)
			s.run(s.now + second)
			s.serves(t, fmt.Sprint(replicas, " replicas"), 30, 190, 70)
		}
	}
}

// change puts another limit in force.
func (s *sim) change(l simLimit) {
	s.limit, s.store.limit, s.over, s.unbound = l, l.Limit, 0, 0
	s.store.level = s.store.most()
	for _, r := range s.replicas {
		c := r.bucket.Config
		c.Limit = l.Limit
		r.bucket.Become(c, s.now)
	}
}

// TestUnreachableStore checks that in strict mode, clients use the hits that were paid for while the store is unavailable. Then the
// fallback applies, also to new clients, until the store returns.
func TestUnreachableStore(t *testing.T) {
	t.Parallel()
	for _, l := range []simLimit{
		{Limit: shares.Limit{Hits: 600, Window: 60 * second}, mode: shares.Strict},
		{Limit: shares.Limit{Hits: 10, Window: second, Burst: 600}, mode: shares.Strict},
		{Limit: shares.Limit{Hits: 10, Window: second, Burst: 20, Overdraft: true}},
	} {
		for f, want := range map[shares.Fallback]float64{shares.Deny: 0, shares.Allow: 150} {
			s := fleet(l, 2, 50, 50, 0)
			s.fallback = f
			s.run(s.now + 30*second)
			s.store.down = true
			s.run(s.now + 30*second)
			s.clients[2].demand = 50
			s.run(s.now + second)
			s.run(s.now + 25*second)
			each, _, _ := s.seconds(120)
			if low, high := slices.Min(each), slices.Max(each); high > want || low < want {
				t.Errorf("limit %+v, fallback %d: admitted %swant %.0f", l, f, show(each), want)
			}
		}
	}
}

// TestSpan checks that the first report to another replica counts for the time that it covers, which Envoy rounds down to seconds.
func TestSpan(t *testing.T) {
	t.Parallel()
	for elapsed, want := range map[shares.Micros]float64{4: 80, 5: 80, 2: 160} {
		b := shares.New(shares.Config{Limit: shop.Limit}, 0)
		b.Report(0, shares.Client{ID: "a", Weight: 1}, shares.Usage{Elapsed: elapsed * second, Allowed: 300, Denied: 100})
		if got := b.Holders()[0].Demand; got != want {
			t.Errorf("400 requests in %d s: a demand of %.0f, want %.0f", elapsed, got, want)
		}
	}
}

// TestStrays checks that clients that repeatedly report usage without an assignment leave a third of the limit to others.
func TestStrays(t *testing.T) {
	t.Parallel()
	big := shares.Usage{Allowed: 1 << 40}
	fast := simLimit{Limit: shares.Limit{Hits: 1000, Window: second, Burst: 1000, Overdraft: true}}
	day := simLimit{Limit: shares.Limit{Hits: 86_400_000, Window: 86_400 * second}, mode: shares.Strict}
	for _, l := range []simLimit{fast, day} {
		s := fleet(l, 0, 300)
		s.clients[0].envoy.NoAssignment = sharestest.DenyAll
		s.run(s.now + 20*second)
		lie := func(i int) {
			id := fmt.Sprint("liar", i)
			s.replicas[0].bucket.Report(s.now, shares.Client{ID: id, Weight: 1}, big)
			s.replicas[0].bucket.Leave(s.now, id)
		}
		before := s.store.level
		if l.mode == shares.Strict {
			lie(0)
			s.run(s.now + 10*second)
			if took := before - s.store.level; took > 0.7*float64(s.now%l.Window)/float64(second)*l.rate()+30_000 {
				t.Errorf("one report took %.0f hits of a day", took)
			}
		}
		for i := range 60 {
			lie(i + 1)
			s.run(s.now + second)
		}
		each, _, _ := s.seconds(10)
		if slices.Min(each) < 290 {
			t.Errorf("mode %d: %s", l.mode, show(each))
		}
	}
}

// TestGranted checks that hits refunded to a consumed window reach clients within an interval.
func TestGranted(t *testing.T) {
	t.Parallel()
	s := fleet(simLimit{Limit: shares.Limit{Hits: 10_000, Window: 86_400 * second}, mode: shares.Strict}, 0, 200, 200)
	s.run(s.now + 200*second)
	if each, _, _ := s.seconds(10); slices.Max(each) > 5 || s.longest > 18 {
		t.Fatalf("the day is not used up: %s", show(each))
	}
	s.store.level = 900
	each, _, _ := s.seconds(6)
	if slices.Max(each) < 20 {
		t.Errorf("clients are still denied: %s", show(each))
	}
}

// TestTiny checks that a limit much smaller than the number of clients is not exceeded.
func TestTiny(t *testing.T) {
	t.Parallel()
	l := simLimit{Limit: shares.Limit{Hits: 10, Window: 3600 * second, Burst: 10, Overdraft: true}}
	s := fleet(l, 0, slices.Repeat([]float64{1}, 50)...)
	for _, c := range s.clients {
		c.envoy.NoAssignment = sharestest.DenyAll
	}
	s.run(s.now + 3600*second)
	each, _, _ := s.seconds(2 * 3600)
	sum := 0.0
	for _, n := range each {
		sum += n
	}
	if sum > 25 {
		t.Errorf("%.0f of 20 hits were admitted in two hours", sum)
	}
}

// TestHalfOpen checks that a client that reports to another replica before the first one has noticed the end of its stream takes little
// from others.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	s := fleet(shop, 2, 45, 45)
	s.run(s.now + 22*second)
	c := s.clients[0]
	c.open, c.inbox = false, nil
	if each, _, denied := s.seconds(30); denied > 100 {
		t.Errorf("%.0f requests below the limit were denied; admitted each second: %s", denied, show(each))
	}
}

// TestCallersElsewhere checks that RLS callers of a replica without clients get their part.
func TestCallersElsewhere(t *testing.T) {
	t.Parallel()
	s := fleet(shop, 2, 80, 0, 80)
	s.replicas[1].calls = 100
	s.replicas[1].bucket.Follow(s.now)
	s.run(s.now + 20*second)
	before := s.byRLS
	s.run(s.now + 20*second)
	if got := (s.byRLS - before) / 20; got < 28 || got > 40 {
		t.Errorf("RLS callers beside two clients were admitted %.1f of 100 a second, want a third", got)
	}
}
