package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
)

// loads returns the checks of group C.
func loads() []check {
	return []check{
		{
			"C18", "open loop at 1, 2, 3 and 5 × peak, then 0.5 ×: 16 descriptors on Redis, 96 in memory, 16 warm ones with and without leases. Server and Redis share a processor. A surge with a Redis 2 to 8 ms away",
			"goodput ≥ 0.80, 0.60, 0.50, 0.35 of peak, with leases ≥ 0.7·(1 − k·s)/(1 − s); accepted p99 ≤ 20 ms; RSS ≤ 1.5 ×. Half of the peak 2 s after: p99 ≤ 2 ×, 99 % decided. Health never fails. Far away, 97 % of 5,000 a second decided before and after",
			true, overload,
		},
		{
			"C19", "one hot key; all callers at the edge of a second",
			"≥ 70 % of the rate of spread keys; over the limit Redis ops ≤ 1 %; p99 at the edge ≤ 2 × in the middle", true, hotKey,
		},
		{
			"C20", "1,000,000 distinct values, at 0.4 × what a closed loop reaches, and 100,000 unknown domains",
			"RSS +≤ 64 MB on Redis, in memory ≤ 200 bytes a counter; +≤ 20 MB for domains; series +0; /metrics ≤ 1 MB; keys without TTL 0; good client p99 ≤ 2 ×",
			true, cardinality,
		},
		{
			"C21", "500 concurrent connections; Redis loses all clients 5 times; a domain at 2 and 5 × the peak beside a quiet one",
			"≤ 4 dials in flight; rejected_connections 0; quiet domain ≥ 99 % decided in 20 ms beside 2 × the peak, ≥ 95 % beside 5 ×", true, crowd,
		},
	}
}

// surge is a server under overload, and its measurements.
type surge struct {
	work

	e        *env
	server   *server
	redis    *store // nil for BACKEND_TYPE=memory
	requests [][]byte
	curve    bool // publish figures without judging them

	levels   []level // nil until measured
	inflight int     // open calls per connection at the peak
	peak     float64 // maximum decided calls per second, last measured
	cost     float64 // CPU seconds per decided call, last measured
	rss      int64   // at the peak

	theirs    float64       // largest share of the server's processor that other processes used
	lag       time.Duration // p99 of the load generator's own delay
	again     int           // parts of levels that were repeated
	disturbed bool          // figures include disturbed parts
}

// level is a measurement at a multiple of the peak.
type level struct {
	all  outcomes
	peak float64 // calls decided at the peak rate, measured before and after
	cost float64 // CPU seconds for these
	busy float64 // CPU seconds used
	rss  int64
}

// add adds a measurement.
func (v *level) add(l level) {
	v.all = append(v.all, l.all...)
	v.peak, v.cost, v.busy, v.rss = v.peak+l.peak, v.cost+l.cost, v.busy+l.busy, max(v.rss, l.rss)
}

// decided returns the number of calls that a counter decided in time.
func (v *level) decided() float64 { return float64(v.all.inTime(okay)) }

// residual returns the cost of an undecided call, relative to a decided one at the peak.
func (v *level) residual() float64 {
	cost, decided := v.cost/v.peak, v.decided()
	return max(0, (v.busy-decided*cost)/max(float64(len(v.all))-decided, 1)/cost)
}

func (s *surge) load() load {
	return load{addr: s.server.GRPC, requests: s.requests}
}

// busy returns the CPU time of the server and Redis.
func (s *surge) busy() float64 {
	sum := s.server.busy()
	if s.redis != nil {
		sum += s.redis.busy()
	}
	return sum.Seconds()
}

// wide returns 2,000 requests with n descriptors each.
func wide(domain string, n int) (all [][]byte) {
	for r := range 2000 {
		var some []string
		for d := range n {
			some = append(some, fmt.Sprintf("user=u%d", r*n+d))
		}
		all = append(all, request(domain, some...))
	}
	return all
}

// calmRules has limits that are never reached, so that only the fallback rejects.
const calmRules = `domain: busy
descriptors:
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 1000000000
      on_failure: deny #+
`

// warmRules has limits for leases that are not reached during a check: 16,000 counters of 100,000 an hour each. Without
// on_failure, an undecided call is an error.
const warmRules = `domain: busy
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 100000}
`

// warm returns 2,000 requests with 16 descriptors each. Each descriptor has 1,000 values.
func warm(domain string) (all [][]byte) {
	for r := range 2000 {
		var some []string
		for d := range 16 {
			some = append(some, fmt.Sprintf("user=d%d-%d", d, (r*(2*d+1))%1000)) // in a different order for each descriptor
		}
		all = append(all, request(domain, some...))
	}
	return all
}

// freeRules has no limits.
const freeRules = `domain: free
descriptors:
  - key: user
    rate_limit:
      unlimited: true
`

// work describes the load of a server.
type work struct {
	memory      bool
	descriptors int
	policy      string // on_failure
	warm        warmth
}

// warmth tells whether counters are busy enough for leases, and whether leases are on.
type warmth uint8

const (
	cold     warmth = iota // thousands of counters, each rarely used
	unleased               // 16,000 counters, each used about twenty times a second, leases off
	leased                 // the same with leases on, the default
)

// String describes the work, such as "16 descriptors on Redis, deny".
func (k work) String() string {
	where := "on Redis"
	switch {
	case k.memory:
		where = "in memory"
	case k.warm == unleased:
		return "16 warm descriptors on Redis, leases off"
	case k.warm == leased:
		return "16 warm descriptors on Redis, leases on"
	}
	return fmt.Sprintf("%d descriptors %s, %s", k.descriptors, where, k.policy)
}

// newSurge starts a server, and Redis unless counters are in memory.
func (e *env) newSurge(ctx context.Context, k work) *surge {
	s := &surge{work: k, e: e, requests: wide("busy", k.descriptors)}
	rules := strings.Replace(calmRules, "deny", k.policy, 1)
	vars := []string{"BACKEND_TYPE=memory"}
	if k.warm != cold {
		s.requests, rules = warm("busy"), warmRules
	}
	if !k.memory {
		s.redis = e.redis(ctx)
		vars = []string{"REDIS_URL=" + s.redis.addr, fmt.Sprintf("NEAR_CACHE_LEASES=%t", k.warm != unleased)}
	}
	s.server = e.startServer(ctx, rules, vars...)
	return s
}

// alone calls f, and reports whether the processors of the server and the load generator were otherwise idle. If not, figures are
// unreliable.
func (s *surge) alone(f func() outcomes) (decided outcomes, quiet bool) {
	const much, slow = 0.1, 5 * time.Millisecond
	begin, all, busy := time.Now(), spent(s.e.theirs), s.busy()
	decided = f()
	took := time.Since(begin).Seconds()
	theirs, lag := ((spent(s.e.theirs)-all).Seconds()-(s.busy()-busy))/took, decided.lag(0.99)
	s.theirs, s.lag = max(s.theirs, theirs), max(s.lag, lag)
	return decided, theirs <= much && lag <= slow
}

// measurePeak measures the maximum rate of decided calls, and their cost.
func (s *surge) measurePeak(ctx context.Context, d time.Duration) {
	best := 0.0
	for _, inflight := range []int{8, 24} {
		if s.measure(ctx, inflight, d/2); s.peak > best {
			best, s.inflight, s.rss = s.peak, inflight, s.server.rss()
		}
	}
	s.peak = best
}

// measure measures the current peak and cost. Both vary if others use the machine.
func (s *surge) measure(ctx context.Context, inflight int, d time.Duration) {
	l := s.load()
	l.inflight = inflight
	l.run(ctx, d/2) // warm-up
	s.alone(func() outcomes {
		before, begin := s.busy(), time.Now()
		all := l.run(ctx, d)
		took, busy := time.Since(begin).Seconds(), s.busy()-before
		n := max(float64(len(all.of(okay))), 1)
		s.peak, s.cost = n/took, busy/n
		s.e.note("%s: closed loop of %d %s; %.0f a second, %.2f of the processor", s.work, 4*l.inflight, all, s.peak, busy/took)
		return nil
	})
}

// normal measures seven seconds at half the peak, after a delay. A server that shares a processor with Redis collects garbage
// every 0.7 s, which delays calls. With fewer collections, p99 would depend on chance.
func (s *surge) normal(ctx context.Context, after time.Duration) outcomes {
	l := s.load()
	l.rate, l.timeout, l.patience = s.peak/2, envoyTimeout, time.Second
	d := after + 7*time.Second
	return l.run(ctx, d).between(after, d)
}

const (
	part  = 750 * time.Millisecond // minimum length of a part
	again = part / 2               // length of the peak measurement between parts, after a warm-up of half of that
)

// at measures k times the peak in parts. It measures the peak between parts, because the speed of the machine varies. It repeats
// a disturbed part, and keeps only its memory.
func (s *surge) at(ctx context.Context, k float64, d time.Duration, parts int) (v level) {
	for n, left := 0, parts; n < parts; {
		l, quiet := s.part(ctx, k, d/time.Duration(parts))
		if !quiet && left > 0 {
			left--
			s.again++
			v.rss = max(v.rss, l.rss)
			continue
		}
		n++
		v.add(l)
		s.disturbed = s.disturbed || !quiet
	}
	return v
}

// part measures a part of a level, and reports whether it was undisturbed.
func (s *surge) part(ctx context.Context, k float64, d time.Duration) (v level, quiet bool) {
	l, peak, cost := s.load(), s.peak, s.cost
	l.rate, l.timeout = k*peak, envoyTimeout
	rss := s.server.peakRSS()
	before := s.busy()
	all, quiet := s.alone(func() outcomes { return l.run(ctx, d) })
	v = level{busy: s.busy() - before, rss: rss(), all: all.between(0, d)}
	s.e.note("%s, %g × peak: %s", s.work, k, v.all)
	s.measure(ctx, s.inflight, again)
	v.peak = (peak + s.peak) / 2 * d.Seconds()
	v.cost = (cost + s.cost) / 2 * v.peak
	return v, quiet
}

// transportCost returns the cost of a call without a limit, relative to a decided one. Such a call is read, matched, and
// answered, like one decided by the fallback, which costs a little more.
func (s *surge) transportCost(ctx context.Context) (share float64) {
	l := s.load()
	l.requests, l.inflight = wide("free", s.descriptors), s.inflight
	l.run(ctx, again)
	before := s.busy()
	all := l.run(ctx, 2*again)
	busy := s.busy() - before
	s.e.note("%s, without a limit: closed loop of %d %s", s.work, 4*l.inflight, all)
	n := len(all.of(okay))
	if n < len(all)*99/100 {
		s.e.fail("of %d calls without a limit %d were answered", len(all), n)
	}
	cost := s.cost
	s.measure(ctx, s.inflight, 2*again)
	return busy / float64(n) / ((cost + s.cost) / 2)
}

func overload(ctx context.Context, e *env) {
	e.pin()
	type round struct {
		work

		length time.Duration // of each level; the rest takes 28 s, and 0.6 s per part
		curve  bool
	}
	rounds := []round{
		{work{descriptors: 16, policy: "deny"}, 6 * time.Second, false},
		{work{descriptors: 16, policy: "error"}, 4500 * time.Millisecond, false},
		{work{memory: true, descriptors: 96, policy: "deny"}, 4 * time.Second, false},
		{work{memory: true, descriptors: 96, policy: "error"}, 3 * time.Second, false},
		{work{descriptors: 16, policy: "error", warm: unleased}, 3 * time.Second, false},
		{work{descriptors: 16, policy: "error", warm: leased}, 3 * time.Second, false},
	}
	var off *surge // the round with leases off
	if e.full {
		rounds = append(slices.Repeat(rounds, 3),
			round{work{descriptors: 1, policy: "deny"}, 4 * time.Second, true}, round{work{memory: true, descriptors: 1, policy: "deny"}, 4 * time.Second, true})
	}
	for _, r := range rounds {
		s := e.newSurge(ctx, r.work)
		s.curve = r.curve
		s.play(ctx, r.length)
		switch r.warm {
		case cold:
		case unleased:
			off = s
		case leased:
			s.against(off)
		}
		s.server.Kill()
		if s.redis != nil {
			s.redis.Kill()
		}
	}
	e.far(ctx)
}

// figure records a figure. Figures of a curve are only published.
func (s *surge) figure(good bool, format string, args ...any) {
	s.e.measured(good || s.curve, format, args...)
}

// play measures all levels and records the figures.
func (s *surge) play(ctx context.Context, length time.Duration) {
	e := s.e
	s.measurePeak(ctx, 4*time.Second)
	base := s.normal(ctx, time.Second)
	e.note("%s, half of the peak: %s", s.work, base)
	s.server.serve("free.yaml", freeRules)
	shareBefore := s.transportCost(ctx)
	health := s.server.health(ctx)
	spent := s.server.metric(ctx, "ratelimitd_near_cache_spent_total")
	var levels []level
	parts := int(length / part)
	for _, k := range []float64{1, 2, 3} {
		levels = append(levels, s.at(ctx, k, length, parts))
	}
	levels = append(levels, s.at(ctx, 5, length, 1)) // memory grows in a long surge
	if s.warm == leased {
		s.leases(levels, s.server.metric(ctx, "ratelimitd_near_cache_spent_total")-spent)
	}
	s.levels = levels
	after := s.normal(ctx, 2*time.Second)
	failed, asked := health()
	e.note("%s, half of the peak again: %s", s.work, after)
	shareAfter := s.transportCost(ctx)
	share := (shareBefore + shareAfter) / 2
	e.published("%s: peak %.0f a second, %.0f µs each", s.work, s.peak, s.cost*1e6)
	e.published("s = %.2f; calls not decided in time at 5 × cost %.2f", share, levels[len(levels)-1].residual())
	s.publish()
	s.report(levels, share)
	s.asBefore(after, base)
	s.figure(failed == 0, "health failed %d of %d", failed, asked)
}

// leases records the share of hits from leases. Without any, the figures would not be about leases.
func (s *surge) leases(levels []level, spent float64) {
	hits := 0.0
	for _, v := range levels {
		hits += v.decided() * float64(s.descriptors)
	}
	s.figure(spent >= 0.1*hits, "%.0f %% of the hits from leases", 100*spent/hits)
}

// against compares decided calls with leases and without. Levels are multiples of different peaks, so each level with leases is
// compared with the level without that has the next smaller load.
func (s *surge) against(off *surge) {
	s.figure(s.peak >= off.peak, "peak with leases %.0f a second, without %.0f", s.peak, off.peak)
	var rows []string
	no := true
	for _, v := range s.levels {
		seconds := v.peak / s.peak
		load, got := float64(len(v.all))/seconds, v.decided()/seconds
		without := 0.0
		for _, w := range off.levels {
			if seconds := w.peak / off.peak; float64(len(w.all))/seconds <= load*1.05 {
				without = w.decided() / seconds
			}
		}
		no = no && got >= without
		rows = append(rows, fmt.Sprintf("%.0f of %.0f (without %.0f)", got, load, without))
	}
	s.figure(no, "decided a second with leases %s", strings.Join(rows, ", "))
}

// asBefore records whether half the peak is decided after a surge as before.
func (s *surge) asBefore(after, base outcomes) {
	const asked = 0.99
	most := min(max(2*base.p(0.99), 2*time.Millisecond), envoyTimeout)
	share := func(all outcomes) float64 { return all.share(all.inTime(okay)) }
	s.figure(after.p(0.99) <= most && share(after) >= asked, "2 s after: p99 %s (before: %s), %.1f %% decided in time (before: %.1f %%)",
		ms(after.p(0.99)), ms(base.p(0.99)), 100*share(after), 100*share(base))
}

// publish records disturbances by other processes.
func (s *surge) publish() {
	if s.again > 0 {
		s.e.published("%d parts were measured again because others took processors", s.again)
	}
	if s.disturbed {
		s.e.published("DISTURBED: others took up to %.0f %% of the server's processor, and calls were sent late by %s (p99)", 100*s.theirs, ms(s.lag))
	}
}

// asks returns the required share of the peak at a level of k times the peak. A shed call costs share of a decided one, which is
// much if most hits come from leases.
func (s *surge) asks(level int, k, share float64) float64 {
	if s.warm == leased {
		return 0.7 * max(0, 1-k*share) / (1 - share)
	}
	return [...]float64{0.80, 0.60, 0.50, 0.35}[level]
}

// report records the figures of all levels.
func (s *surge) report(levels []level, share float64) {
	var goods, policies, lates []string
	reached := true
	p99, rss := time.Duration(0), int64(0)
	for i, v := range levels {
		k := max(1, float64(len(v.all))/v.peak)
		asked := s.asks(i, k, share)
		got := v.decided() / v.peak
		reached = reached && got >= asked
		goods = append(goods, fmt.Sprintf("%.2f (asked %.2f)", got, asked))
		policies = append(policies, fmt.Sprintf("%.2f", float64(v.all.inTime(over))/v.peak))
		lates = append(lates, fmt.Sprintf("%.1f %%", 100*v.all.share(len(v.all.of(late)))))
		p99, rss = max(p99, v.all.of(okay).p(0.99)), max(rss, v.rss)
	}
	s.figure(reached, "goodput at 1, 2, 3, 5 × %s", strings.Join(goods, ", "))
	s.e.published("by the fallback %s of peak; too late %s", strings.Join(policies, ", "), strings.Join(lates, ", "))
	s.figure(p99 <= envoyTimeout+2*calls.Pace, "accepted p99 %s", ms(p99))
	s.figure(float64(rss) <= 1.5*float64(s.rss), "RSS %s, at the peak %s", mb(rss), mb(s.rss))
}
