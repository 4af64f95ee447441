package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
)

// topologies returns the checks of group B with several Redis processes, with error replies, or with data loss.
func topologies() []check {
	return []check{
		{
			"B13", "Sentinel: master killed, failed over by hand, hung; a single Redis turns into a replica",
			"errors end ≤ 3 s, ≤ 1 s after a repoint; none of NOSCRIPT and READONLY after; hits lost ≤ those admitted in the last second before, and until the switch", true, failovers,
		},
		{
			"B14", "Cluster: 500 slots move, a master is killed",
			"0 errors from MOVED, ASK, TRYAGAIN and CROSSSLOT, no hit lost; gap ≤ 4 s, only on that shard's keys", true, reshards,
		},
		{
			"B15", "Redis answers with errors: OOM, BUSY, LOADING, MASTERDOWN, MISCONF, NOREPLICAS, maxclients, NOSCRIPT × 20, CLUSTERDOWN",
			"9 of 9: right class, fallback applied, recovery ≤ 1 s; NOSCRIPT 0 failures", true, errorZoo,
		},
		{
			"B16", "Redis wants another password, permission or certificate",
			"7 of 7 failed and named, no secret shown; rotation 0 failed calls", false, redisAccess,
		},
		{
			"B17", "Redis returns empty; clocks jump by a second and an hour",
			"extra ≤ the limit once per jump ahead, none on a jump back; no key rejected for longer than its unit; remaining never negative", false, clocksAndMemory,
		},
	}
}

// endless has limits that are never reached, exact for each call.
const endless = `domain: shop
descriptors:
  - key: user
    rate_limit:
      unit: hour
      requests_per_unit: 1000000000
      lease: off #+
  - key: listed
    rate_limits: #+
      - {unit: hour, requests_per_unit: 900000000} #+
      - {unit: day, requests_per_unit: 1000000000} #+
`

// values returns one request per value of a key.
func values(key string, n int) (all [][]byte) {
	for i := range n {
		all = append(all, request("shop", fmt.Sprintf("%s=%d", key, i)))
	}
	return all
}

// broke reports whether a call failed before its deadline.
func broke(o outcome) bool {
	return o.kind == lost || o.kind == failed && o.code != codes.DeadlineExceeded
}

// unanswered reports whether the client gave up.
func unanswered(o outcome) bool {
	return o.kind == late || o.kind == failed && o.code == codes.DeadlineExceeded
}

// gap returns the number of failed calls after from, and the times of the first and the last in a gap. A gap consists of periods
// of 100 ms in which at least a tenth of the calls failed, or at least half have no answer. Fewer failures may be due to a busy
// machine.
func (all outcomes) gap(from time.Duration) (first, last time.Duration, n int) {
	return all.gapOf(from, broke)
}

// gapOf is gap for another definition of failure.
func (all outcomes) gapOf(from time.Duration, broke func(outcome) bool) (first, last time.Duration, n int) {
	const span = 100 * time.Millisecond
	type tally struct{ calls, broken, open int }
	spans := map[time.Duration]tally{}
	for _, o := range all {
		t := spans[o.due/span]
		spans[o.due/span] = tally{t.calls + 1, t.broken + boolInt(broke(o)), t.open + boolInt(unanswered(o))}
	}
	first, last = from, from
	for _, o := range all {
		if o.due < from {
			continue
		}
		t, failed := spans[o.due/span], broke(o)
		n += boolInt(failed)
		together := failed && 10*t.broken >= t.calls || unanswered(o) && 2*t.open >= t.calls
		if !together {
			continue
		}
		if last == from || o.due < first {
			first = o.due
		}
		last = max(last, o.due)
	}
	return first, last, n
}

// spent returns the hits in the counters of n values, computed from their remaining hits.
func (s *server) spent(ctx context.Context, key string, n int, limit int64) (sum int64) {
	c := s.rls()
	for i := range n {
		var r *rlsv3.RateLimitResponse
		s.e.await(ctx, "a decision", func() (ok bool) {
			var err error
			r, err = c.ShouldRateLimit(ctx, ask("shop", fmt.Sprintf("%s=%d", key, i)))
			return err == nil
		})
		sum += limit - int64(r.GetStatuses()[0].GetLimitRemaining()) - 1
	}
	return sum
}

// failover is a way to lose a master, and the results, in times of the load.
type failover struct {
	name string
	do   func(*store) error

	at, switched time.Duration
	strays       float64 // READONLY and NOSCRIPT errors after errorsEnd
}

// errorsEnd bounds the errors after the loss of a master.
const errorsEnd = 3 * time.Second

// failovers is B13.
func failovers(ctx context.Context, e *env) {
	c := e.sentinel(ctx, 2)
	s := e.startServer(ctx, endless, "REDIS_TYPE=sentinel", "REDIS_URL="+c.url)
	const keys = 100
	l := load{addr: s.GRPC, requests: values("user", keys), rate: 1500, timeout: envoyTimeout}.start(ctx)
	e.sleep(ctx, 2*time.Second)
	faults := []*failover{
		{name: "killed", do: func(m *store) error { m.Kill(); return nil }},
		{name: "failed over by hand", do: func(*store) error { return c.all[0].Do(ctx, "SENTINEL", "FAILOVER", "mymaster").Err() }},
		{name: "hung", do: (*store).Pause},
	}
	for _, f := range faults {
		f.play(ctx, c, s, l)
	}
	end := l.now()
	all := l.stop()
	e.note("%s", all)
	risk := 0
	for i, f := range faults {
		until := end
		if i+1 < len(faults) {
			until = faults[i+1].at
		}
		until -= 2 * envoyTimeout // later calls belong to the next fault
		_, last, n := all.between(0, until).gap(f.at)
		took := last - f.at
		e.measured(took <= errorsEnd, "%s: %d errors, the last after %s", f.name, n, ms(took))
		risk += len(all.between(f.at-time.Second, f.switched+time.Second).of(okay))
		after := all.between(f.at+errorsEnd, until)
		wrong := len(after) - len(after.of(okay))
		e.note("%s: 3 s later %s; %.0f READONLY and NOSCRIPT", f.name, after, f.strays)
		if f.strays != 0 || after.share(wrong) > 0.01 {
			e.measured(false, "%d of %d wrong later than that, %.0f READONLY and NOSCRIPT", wrong, len(after), f.strays)
		}
	}
	counted := s.spent(ctx, "user", keys, 1_000_000_000)
	lostHits := int64(len(all.of(okay))) - counted
	e.measured(lostHits <= int64(risk), "%d hits of %d lost, at most %d", max(lostHits, 0), len(all.of(okay)), risk)
	repoint(ctx, e)
}

// play loses the master and waits until another one has taken over and errorsEnd has passed.
func (f *failover) play(ctx context.Context, c *sentinels, s *server, l *running) {
	c.successor(ctx)
	m := c.settled(ctx)
	f.at = l.now()
	s.e.note("the master at %s is %s, at %s", m.addr, f.name, f.at)
	s.e.must(f.do(m))
	took, ok := poll(ctx, 10*time.Second, func() bool { now := c.master(ctx); return now != nil && now != m })
	s.e.note("another master after %s", ms(took))
	if !ok {
		s.e.fail("no other master after the master was %s", f.name)
	}
	f.switched = l.now()
	s.e.sleep(ctx, errorsEnd)
	before := s.strays(ctx)
	s.e.sleep(ctx, 3*time.Second)
	f.strays = s.strays(ctx) - before
}

// strays returns the number of READONLY and NOSCRIPT errors. It is 0 for other servers, which may lack the metric.
func (s *server) strays(ctx context.Context) float64 {
	if s.e.other {
		return 0
	}
	all, err := s.metrics(ctx)
	s.e.must(err)
	const of = `ratelimitd_backend_errors_total{class=%q}`
	return all[fmt.Sprintf(of, "readonly")] + all[fmt.Sprintf(of, "noscript")]
}

// settled waits for a master with a synchronized replica, and returns it.
func (s *sentinels) settled(ctx context.Context) (m *store) {
	s.e.await(ctx, "a master with a replica in step", func() bool {
		if m = s.master(ctx); m == nil {
			return false
		}
		info := m.Info(ctx, "replication").Val()
		return strings.Contains(info, "role:master") && strings.Contains(info, "state=online")
	})
	return m
}

// successor waits until each sentinel knows a replica that can take over. A former master that still runs becomes a replica up to
// ten seconds after a failover, and the sentinels learn of it with their next query.
func (s *sentinels) successor(ctx context.Context) {
	for _, w := range s.all {
		s.e.await(ctx, "a replica that may take over at "+w.addr, func() bool {
			cmd := redis.NewMapStringStringSliceCmd(ctx, "sentinel", "replicas", "mymaster")
			_ = w.Process(ctx, cmd)
			return slices.ContainsFunc(cmd.Val(), func(r map[string]string) bool {
				return r["flags"] == "slave" && r["master-link-status"] == "ok"
			})
		})
	}
}

// repoint turns the Redis behind a name into a replica, and half a second later points the name to its master.
func repoint(ctx context.Context, e *env) {
	before := e.redis(ctx)
	after := e.redis(ctx)
	w := e.wire(ctx, before.addr)
	s := e.startServer(ctx, endless, "REDIS_URL="+w.addr)
	l := load{addr: s.GRPC, requests: values("user", 100), rate: 1500, timeout: envoyTimeout}.start(ctx)
	e.sleep(ctx, time.Second)
	before.follow(ctx, after)
	e.sleep(ctx, time.Second/2)
	at := l.now()
	w.lead(after.addr)
	e.sleep(ctx, time.Second)
	early := s.strays(ctx)
	e.sleep(ctx, 1500*time.Millisecond)
	end := l.now() - 2*envoyTimeout
	strays := s.strays(ctx)
	all := l.stop().between(0, end)
	e.note("READONLY: %s", all)
	_, _, failed := all.gap(0)
	_, last, n := all.gap(at)
	e.measured(failed > 0 && last-at <= time.Second, "READONLY: %d errors, %d after the repoint, the last %s after it", failed, n, ms(last-at))
	if strays > early {
		e.measured(false, "%.0f READONLY later than a second after it", strays-early)
	}
}

// reshards is B14.
func reshards(ctx context.Context, e *env) {
	c := e.cluster(ctx, 3, true)
	// envoyproxy/ratelimit requires the pipeline window.
	of := []string{"REDIS_TYPE=cluster", "REDIS_URL=" + c.url, "REDIS_PIPELINE_WINDOW=150us"}
	s := e.startServer(ctx, endless, append(of, patient)...)
	moveSlots(ctx, e, c, s)
	s.Kill()
	s = e.startServer(ctx, endless, of...)
	killShard(ctx, e, c, s)
}

func moveSlots(ctx context.Context, e *env, c *shards, s *server) {
	const keys = 300
	// A long timeout, because this check is about errors of redirects, not about latency.
	requests := values("user", keys)
	if !e.other {
		requests = append(requests, values("listed", keys/3)...)
	}
	l := load{addr: s.GRPC, requests: requests, rate: 1500, timeout: time.Second}.start(ctx)
	e.sleep(ctx, time.Second)
	var ids []string
	for _, n := range c.nodes[:2] {
		id, err := n.Do(ctx, "CLUSTER", "MYID").Text()
		e.must(err)
		ids = append(ids, id)
	}
	begin := time.Now()
	out, err := output(ctx, "redis-cli", "--cluster", "reshard", c.nodes[0].addr, "--cluster-from", ids[0], "--cluster-to", ids[1],
		"--cluster-slots", "500", "--cluster-yes", "--cluster-pipeline", "1")
	if err != nil {
		e.fail("moving slots: %w: %s", err, out[max(0, len(out)-500):])
	}
	took := time.Since(begin)
	e.sleep(ctx, time.Second/2)
	all := l.stop()
	e.note("%s", all)
	bad := len(all) - len(all.of(okay))
	e.measured(bad == 0, "500 slots moved in %.1f s: %d of %d calls failed", took.Seconds(), bad, len(all))
	counted := s.spent(ctx, "user", keys, 1_000_000_000)
	admitted := int64(len(all.that(func(o outcome) bool { return o.kind == okay && o.what < keys })))
	e.measured(counted >= admitted, "%d hits admitted, %d counted", admitted, counted)
}

// killShard kills the second master.
func killShard(ctx context.Context, e *env, c *shards, s *server) {
	const keys, victim = 120, 1
	homes := c.homes(ctx, s, "user", 1000, keys)
	var requests [][]byte
	for i := range keys {
		requests = append(requests, request("shop", fmt.Sprintf("user=%d", 1000+i)))
	}
	l := load{addr: s.GRPC, requests: requests, rate: 1000, timeout: envoyTimeout}.start(ctx)
	e.sleep(ctx, time.Second)
	at := l.now()
	c.nodes[victim].Kill()
	e.sleep(ctx, 6*time.Second)
	all := l.stop()
	e.note("master killed: %s", all)
	hit := func(o outcome) bool { return homes[o.what] == victim }
	first, last, n := all.that(hit).gap(at)
	_, together, others := all.that(func(o outcome) bool { return !hit(o) }).gap(0)
	e.measured(n > 0 && last-at <= 4*time.Second, "master killed: %d errors on its shard, from %s to %s after", n, ms(first-at), ms(last-at))
	e.measured(together == 0, "%d on other shards, each by itself: %s", others, yes(together == 0))
	_, ok := poll(ctx, time.Second, func() bool {
		return slices.ContainsFunc(c.nodes[c.n:], func(r *store) bool {
			return strings.Contains(r.Info(ctx, "replication").Val(), "role:master")
		})
	})
	e.measured(ok, "a replica took over: %s", yes(ok))
}

// homes returns the master that holds the counter of each of n new values, starting with from.
func (c *shards) homes(ctx context.Context, s *server, key string, from, n int) []int {
	client := s.rls()
	sizes := func() (all []int64) {
		for _, m := range c.nodes[:c.n] {
			n, err := m.DBSize(ctx).Result()
			c.e.must(err)
			all = append(all, n)
		}
		return all
	}
	homes := make([]int, n)
	before := sizes()
	for i := range n {
		_, err := client.ShouldRateLimit(ctx, ask("shop", fmt.Sprintf("%s=%d", key, from+i)))
		c.e.must(err)
		after := sizes()
		homes[i] = -1
		for k := range after {
			if after[k] > before[k] {
				homes[i] = k
			}
		}
		before = after
	}
	return homes
}
