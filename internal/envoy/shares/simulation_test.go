package shares_test

import (
	"flag"
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

// A history of 1,000 clients takes half a second, so go test runs few, with fewer clients. The figures of docs/rlqs.md are those of
// -seeds 5000 -clients 1000. A failure reports its seed, which -first repeats.
var (
	seeds = flag.Uint64("seeds", 40, "how many histories each simulation plays")
	first = flag.Uint64("first", 0, "the seed of the first one")
	many  = flag.Int("clients", 100, "how many clients a simulation has at most")
)

// histories returns the seeds of a part of the histories.
func histories(part float64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for seed := *first; seed < *first+max(1, uint64(float64(*seeds)*part)) && yield(seed); seed++ {
		}
	}
}

// size draws the number of clients, log-uniformly, and their limit: 5 to 20 requests per second for each.
func size(seed uint64) (clients int, rate uint64) {
	s := newSim(seed, simLimit{}, 1, 0)
	clients = int(math.Exp(s.rand.Float64() * math.Log(float64(*many))))
	return clients, uint64(float64(clients) * (5 + 15*s.rand.Float64()))
}

// bucket returns a token bucket with a burst of two seconds.
func bucket(rate uint64) simLimit {
	return simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 2 * rate, Overdraft: true}}
}

// window returns a fixed window of the given length.
func window(rate uint64, length shares.Micros, mode shares.Mode) simLimit {
	return simLimit{Limit: shares.Limit{Hits: rate * uint64(length), Window: length * second}, mode: mode}
}

// spread draws demands with the given total.
func (s *sim) spread(total float64) {
	sum := 0.0
	for _, c := range s.clients {
		c.demand = math.Exp(s.rand.NormFloat64())
		sum += c.demand
	}
	s.scale(total / sum)
}

func (s *sim) scale(by float64) {
	for _, c := range s.clients {
		c.demand *= by
	}
}

// halves sets the total demands of the first and the second half of the clients.
func (s *sim) halves(first, second float64) {
	half := len(s.clients) / 2
	for i, c := range s.clients {
		if c.demand = first / float64(half); i >= half {
			c.demand = second / float64(len(s.clients)-half)
		}
	}
}

// change is a change of demand after which the limit should be used again.
type change struct {
	name        string
	before, now func(s *sim)
}

var changes = []change{
	{"all rise to twice the limit", func(s *sim) { s.spread(0.6 * s.limit.rate()) }, func(s *sim) { s.scale(2 / 0.6) }},
	{"one rises by the limit", func(s *sim) { s.spread(0.6 * s.limit.rate()) }, func(s *sim) { s.clients[0].demand += s.limit.rate() }},
	{
		"two halves swap",
		func(s *sim) { s.halves(1.9*s.limit.rate(), 0.1*s.limit.rate()) },
		func(s *sim) { s.halves(0.1*s.limit.rate(), 1.9*s.limit.rate()) },
	},
}

// TestFollows checks that 95 % of the limit is used within 10.2 s after a change of demand, in 99 % of all histories. Several replicas
// take longer, because they exchange rows once a second.
func TestFollows(t *testing.T) {
	t.Parallel()
	for _, c := range changes {
		for _, replicas := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s/%d", c.name, replicas), func(t *testing.T) {
				t.Parallel()
				follow(t, c, replicas)
			})
		}
	}
}

func follow(t *testing.T, c change, replicas int) {
	t.Helper()
	var times []float64
	for seed := range histories(1) {
		n, rate := size(seed)
		s := newSim(seed, bucket(rate), replicas, max(n, 2))
		c.before(s)
		s.run(s.now + 30*second)
		at := s.now
		c.now(s)
		s.run(s.now + 25*second)
		times = append(times, s.reaches(at))
		if s.unbound > 1 {
			t.Errorf("seed %d: %.2f s of the limit beyond the bound", seed, s.unbound/s.limit.rate())
		}
	}
	slices.Sort(times)
	late := 0
	for _, x := range times {
		if x > 10.2 {
			late++
		}
	}
	t.Logf("%.1f s median, %.1f s p90, %.1f s p99, %d of %d late",
		times[len(times)/2], times[len(times)*9/10], times[len(times)*99/100], late, len(times))
	if replicas == 1 && late > len(times)/100+1 {
		t.Errorf("%d of %d took more than 10.2 s", late, len(times))
	}
}

// TestSteady checks that a demand of 1.5 times the limit uses all of it.
func TestSteady(t *testing.T) {
	t.Parallel()
	used := 0.0
	least, sent, off := 1.0, 0.0, 0.0
	for seed := range histories(1) {
		n, rate := size(seed)
		s := newSim(seed, bucket(rate), 1, n)
		s.spread(1.5 * float64(rate))
		s.run(s.now + 30*second)
		from, before := s.now, s.sent
		s.run(s.now + 60*second)
		u := s.used(from, s.now)
		used, least = used+u, min(least, u)
		sent = max(sent, float64(s.sent-before)/60/float64(n))
		off = max(off, s.replicas[0].bucket.OffOracle())
	}
	mean := used / float64(*seeds)
	t.Logf("used %.3f of the limit in the mean, at least %.3f; at most %.2f assignments a second and client; at most %.4f of an even share off the oracle",
		mean, least, sent, off)
	if mean < 0.98 || sent > 1 || off > 0.02 {
		t.Error("want 0.98 in the mean, at most 1 assignment a second and client, and targets within 2 % of the oracle's")
	}
}

// TestBounds checks that no more is admitted than the mode's bound, whatever happens.
func TestBounds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit func(rate uint64) simLimit
	}{
		{"fast bucket", bucket},
		{"strict window", func(rate uint64) simLimit { return window(rate, 60, shares.Strict) }},
		{"strict bucket", func(rate uint64) simLimit {
			return simLimit{Limit: shares.Limit{Hits: rate, Window: second, Burst: 30 * rate}, mode: shares.Strict}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			used, over, worst := 0.0, math.Inf(-1), 0.0
			for seed := range histories(1) {
				n, rate := size(seed)
				s := newSim(seed, c.limit(rate), 1+int(seed%3), n)
				s.chaos, s.late = true, second/2
				s.spread(float64(rate) * (0.5 + 2*s.rand.Float64()))
				from := s.now
				for s.now < from+120*second {
					s.run(s.now + shares.Micros(s.rand.Int64N(int64(4*second))))
					s.disturb()
				}
				used += s.used(from, s.now)
				over, worst = max(over, (s.peak-float64(s.limit.Burst))/float64(rate)), max(worst, s.worst/float64(rate)/60)
				switch strict := s.limit.mode == shares.Strict; {
				case !strict && s.unbound > 1: // late messages are sampled, exactly to a hit
					t.Errorf("seed %d: %.3f s of the limit beyond the bound", seed, s.unbound/float64(rate))
				case strict && s.limit.Burst == 0 && s.worst > float64(s.limit.Hits)+s.owed:
					t.Errorf("seed %d: %.4f of the limit in a window", seed, s.worst/float64(s.limit.Hits))
				case strict && s.limit.Burst > 0 && s.peak > float64(s.limit.Burst):
					t.Errorf("seed %d: %.3f s of the limit beyond burst and rate", seed, (s.peak-float64(s.limit.Burst))/float64(rate))
				}
			}
			t.Logf("used %.2f of the limit, at most %.2f s of the limit beyond burst and rate, fullest window %.3f",
				used/float64(*seeds), over, worst)
		})
	}
}

// TestWindows checks that a window is used up but not exceeded under steady demand, in either mode.
func TestWindows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode     shares.Mode
		length   shares.Micros
		delivery shares.Micros
		least    float64
	}{
		{shares.Strict, 60, 5, 0.9},
		{shares.Strict, 60, 10, 0.9},
		{shares.Strict, 300, 10, 0.98},
	} {
		used, worst, count, least := 0.0, 0.0, 0.0, 1.0
		for seed := range histories(12 / float64(c.length)) {
			n, rate := size(seed)
			l := window(rate, c.length, c.mode)
			l.delivery = c.delivery * second
			s := newSim(seed, l, 1, n)
			s.spread(1.5 * float64(rate))
			s.run(s.now + c.length*second)
			for range 2 {
				s.run(s.now + c.length*second)
				u := s.used(s.now-c.length*second, s.now)
				used, count, least = used+u, count+1, min(least, u)
			}
			worst = max(worst, s.worst/float64(s.limit.Hits))
		}
		t.Logf("mode %d, windows of %d s, delivery in %d s: used %.3f in the mean, at least %.3f, fullest %.4f",
			c.mode, c.length, c.delivery, used/count, least, worst)
		if used/count < c.least || worst > 1 {
			t.Errorf("want at least %.2f, and at most 1", c.least)
		}
	}
}

// TestStrands checks that a client with little demand leaves most of a strict window to RLS callers that come later.
func TestStrands(t *testing.T) {
	t.Parallel()
	for _, demand := range []float64{0.02, 0.1, 0.3} {
		l := window(100, 60, shares.Strict)
		l.delivery = 10 * second
		s := newSim(1, l, 1, 1)
		s.clients[0].demand = demand * s.limit.rate()
		s.run(s.now + 10*second)
		taken := float64(s.store.take(s.now, l.Hits)) // before the client has shown its demand, in a new window
		s.run(s.now + 49*second)
		used := (taken + s.window) / float64(l.Hits)
		t.Logf("demand of %.2f of the limit: %.3f of a window used", demand, used)
		if used < 0.85 {
			t.Error("want at least 0.85")
		}
	}
	s := newSim(1, window(100, 3600, shares.Strict), 1, 1)
	s.clients[0].demand = 2
	s.run(s.now + 60*second)
	if h := s.replicas[0].bucket.Holders()[0]; h.Held > 20 {
		t.Errorf("of an hour's hits a client that needs 2 a second holds %.1f a second", h.Held)
	}
}

// TestDeadAtEdge tests a replica that dies just before the end of a window, and whose assignments last into the next one.
func TestDeadAtEdge(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		const rate = 600
		s := newSim(seed, window(rate, 60, shares.Strict), 3, 60)
		s.spread(2.5 * rate)
		s.run(660*second - second + shares.Micros(seed)*second/10)
		s.replicas[0].dead = true
		s.run(780 * second)
		if s.worst > rate*60 {
			t.Errorf("seed %d: %v of %d admitted in a window", seed, s.worst, rate*60)
		}
	}
}

// TestInherits checks that a replica that starts after the boundary debits what the clients of a dead one were promised beyond it.
func TestInherits(t *testing.T) {
	t.Parallel()
	asks := func(next float64) (hits int) {
		now := 661 * second
		table := []shares.Row{{Replica: "dead", Next: next, Life: 22 * second, Until: 657*second + 22*second}}
		b := shares.New(shares.Config{Limit: shares.Limit{Hits: 6000, Window: 60 * second}, Mode: shares.Strict, Replica: "heir"}, now)
		b.Report(now, shares.Client{ID: "a", Weight: 1}, shares.Usage{})
		for asked := 0; asked < 3; now = b.Next() {
			if a, ok := b.Request(now); ok {
				asked, hits = asked+1, hits+int(a.Hits)-int(a.Return)
				table = sharestest.Agree(table, a.Row, now)
				b.Answer(now, shares.Answer{Granted: a.Hits, Left: float64(6000 - a.Hits), Ends: 720 * second, Rows: table})
			}
			b.Actions(now)
		}
		return hits
	}
	if with, without := asks(500), asks(0); with != without+500 {
		t.Errorf("asks for %d hits, want %d more than %d", with, 500, without)
	}
}

// TestLiar checks that a client that reports a million times its usage takes no more than its share from the others.
func TestLiar(t *testing.T) {
	t.Parallel()
	for _, l := range []simLimit{bucket(100), window(100, 60, shares.Strict)} {
		s := newSim(1, l, 1, 10)
		s.spread(150)
		s.clients[0].lies = 1_000_000
		s.run(s.now + 20*second)
		if got := s.othersOver(100 * second); got < 3500 {
			t.Errorf("mode %d: the others were admitted %d of 10,000 hits", l.mode, got)
		} else {
			t.Logf("mode %d: the others were admitted %d of 10,000 hits", l.mode, got)
		}
	}
}

// othersOver simulates a span, and returns the hits admitted in it of all clients except the first.
func (s *sim) othersOver(span shares.Micros) (admitted uint64) {
	for _, c := range s.clients[1:] {
		admitted -= c.envoy.Admitted
	}
	s.run(s.now + span)
	for _, c := range s.clients[1:] {
		admitted += c.envoy.Admitted
	}
	return admitted
}

// TestQuietLiar checks that a client that reports a million times its allowed requests, and no denied ones, leaves the others a third of
// their demand. Reports count up to twice an assignment, because they may be late.
func TestQuietLiar(t *testing.T) {
	t.Parallel()
	s := newSim(1, bucket(100), 1, 10)
	for _, c := range s.clients {
		c.demand = 5
	}
	s.clients[0].lies = 1_000_000
	s.run(s.now + 20*second)
	if got := s.othersOver(100 * second); got < 1500 {
		t.Errorf("the others were admitted %d of 4500 hits", got)
	}
}

// TestPause checks that a paused bucket asks at the end of the pause, or when a window begins.
func TestPause(t *testing.T) {
	t.Parallel()
	const edge = 660 * second
	now := edge - 2*second
	b := shares.New(shares.Config{Limit: shares.Limit{Hits: 6000, Window: 60 * second}}, now)
	asks := func(now shares.Micros) bool {
		a, ok := b.Request(now)
		if ok {
			b.Answer(now, shares.Answer{Granted: a.Hits, Left: float64(6000 - a.Hits), Ends: (now/(60*second) + 1) * 60 * second})
		}
		return ok
	}
	b.Report(now, shares.Client{ID: "a", Weight: 1}, shares.Usage{})
	if !asks(b.Next()) {
		t.Fatal("it does not ask")
	}
	b.Pause(edge + 10*second)
	if asks(edge-second/2) || b.Next() != edge || !asks(edge) {
		t.Error("it does not ask as the window begins, or before")
	}
	b.Pause(edge + 3*second)
	if asks(edge+2*second) || b.Next() != edge+3*second || !asks(edge+3*second) {
		t.Error("it does not ask as the pause ends, or before")
	}
}

// TestRowLife checks that in strict mode a row is valid until its replica's assignments have expired, even if clients report rarely.
func TestRowLife(t *testing.T) {
	t.Parallel()
	for _, every := range []shares.Micros{5, 14} {
		now := 600 * second
		l := shares.Limit{Hits: 600_000, Window: 3600 * second}
		b := shares.New(shares.Config{Limit: l, Mode: shares.Strict, Delivery: 10 * second, Replica: "a"}, now)
		ends, ttl := now, uint32(0)
		for reports := now; now < 900*second; now += second / 10 {
			if now >= reports {
				b.Report(now, shares.Client{ID: "a", Weight: 1}, shares.Usage{Allowed: 20, Denied: 1})
				reports += every * second
			}
			if b.Next() > now {
				continue
			}
			if a, ok := b.Request(now); ok {
				ends = now + a.Row.Life
				b.Answer(now, shares.Answer{Granted: a.Hits, Left: 500_000, Ends: 3600 * second})
			}
			for _, a := range b.Actions(now) {
				ttl = a.TTL
				if last := now + shares.Micros(ttl)*second + 10*second; last > ends {
					t.Fatalf("reports each %d s: an assignment of %d s lasts %v µs longer than the row", every, ttl, last-ends)
				}
			}
		}
		if want := uint32(3 * every); ttl < want-1 || ttl > want+1 {
			t.Errorf("reports each %d s: assignments of %d s", every, ttl)
		}
	}
}

// TestReconnects checks that a client whose stream was replaced while the store was asked gets the answer on the new one.
func TestReconnects(t *testing.T) {
	t.Parallel()
	now := 600 * second
	b := shares.New(shares.Config{Limit: shares.Limit{Hits: 6000, Window: 60 * second}, Mode: shares.Strict}, now)
	report := func(tag string) { b.Report(now, shares.Client{ID: "a", Weight: 1, Tag: tag}, shares.Usage{}) }
	step := func(meanwhile func()) []shares.Action {
		now = b.Next()
		if a, ok := b.Request(now); ok {
			meanwhile()
			b.Answer(now, shares.Answer{Granted: a.Hits, Left: 5000, Ends: 660 * second})
		}
		return b.Actions(now)
	}
	report("old")
	for b.Next() <= 615*second {
		step(func() {})
	}
	// After a long silence, it is told to abandon the bucket, although it still has its share.
	told := step(func() { report("new") })
	for len(told) == 0 || told[0].Tag != "new" {
		told = step(func() {})
	}
	if told[0].Kind != shares.TokenBucket {
		t.Errorf("told %+v, want an assignment to the new stream", told)
	}
}
