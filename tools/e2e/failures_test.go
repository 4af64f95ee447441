package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// mode says what failure_mode_deny is.
func mode(deny bool) string { return fmt.Sprintf("failure_mode_deny: %t", deny) }

// awaitsRedis has the server wait for Redis, where a case is about something else. By default a Redis that says nothing for 50 ms,
// as on a busy machine, is taken to be away, and on_failure decides.
const awaitsRedis = "REDIS_OP_TIMEOUT=20s"

// envoyTimeout is how long the filter waits by default, and timerGrain by how much Envoy's timers may be early.
const (
	envoyTimeout = 20 * time.Millisecond
	timerGrain   = 10 * time.Millisecond // on a busy machine, as Envoy counts from when its event loop last looked at the clock
)

// failures are those that leave Envoy without an answer.
func failures() (all []example) {
	for _, deny := range []bool{false, true} {
		want := "all pass"
		if deny {
			want = "none pass, all get 500"
		}
		all = append(all,
			example{name: "the server killed, " + mode(deny), want: want, peer: true, play: func(w *world) {
				w.without(deny, func(s *service) { s.Kill() })
			}},
			example{name: "the server hangs, " + mode(deny), want: want + ", after about 20 ms", peer: true, play: func(w *world) {
				y := w.without(deny, func(s *service) { s.hang(w) })
				w.got(y.shortest >= envoyTimeout-timerGrain, "after %s to %s", ms(y.shortest), ms(y.longest))
			}},
		)
	}
	for _, deny := range []bool{false, true} {
		all = append(all, example{
			name: "one of two servers drains, " + mode(deny), want: "no client notices: all pass, and all are counted", peer: true, effort: whole,
			play: func(w *world) { w.drained(deny) },
		})
	}
	const few = "with outlier_detection, as the example has it, less than a quarter of those that fail without"
	return append(all,
		example{name: "one of two servers is killed, failure_mode_deny: true", want: few, effort: most, play: func(w *world) {
			w.halved(func(s *service) { s.Kill() })
		}},
		example{name: "one of two servers hangs, failure_mode_deny: true", want: few, effort: most, play: func(w *world) {
			w.halved(func(s *service) { s.Stop() })
		}},
	)
}

// halved has requests come when something has happened to one of two servers, after which it does not answer: without
// outlier detection first.
func (w *world) halved(happen func(*service)) {
	w.Helper()
	const n = 900 // in 4.5 s; health checks take two to fail
	var failed [2]int
	for i, how := range []string{"without", "with"} {
		_, redis := w.redis()
		up := w.upstream(hello)
		one, other := w.serve(perUser("error"), redis, awaitsRedis), w.serve(perUser("error"), redis, awaitsRedis)
		p := w.proxy(setup{example: "envoy", deny: true, change: func(c *config) {
			if i == 0 {
				c.service.OutlierDetection = nil
			}
		}}, up, one, other)
		stop := w.flow(p, 200, few(10_000)...)
		// Envoy merges changes of health within a second of the first, when both became healthy.
		testkit.Eventually(w, "requests come for more than a second", func() bool { return up.all() > 300 })
		before := p.counts()
		happen(one)
		testkit.Eventually(w, "all requests have come", func() bool {
			now := p.counts()
			return now.ok+now.failed-before.ok-before.failed >= n
		})
		y := stop()
		failed[i] = y.failed
		w.got(y.passed+y.failed == y.all, "%s it %d of %d fail", how, y.failed, y.all)
	}
	w.got(failed[1]*4 < failed[0], "%d against %d", failed[1], failed[0])
}

// hang suspends the server, and waits until all its threads have noticed.
func (s *service) hang(w *world) {
	w.Helper()
	s.Stop()
	testkit.Eventually(w, "the server answers nothing", func() bool {
		ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := healthpb.NewHealthClient(s.conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
		return err != nil
	})
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond)) }

// few are requests of as many users.
func few(n int) (users []string) {
	for i := range n {
		users = append(users, fmt.Sprint("user", i))
	}
	return users
}

// same are requests of one user.
func same(n int) []string { return slices.Repeat([]string{"alice"}, n) }

// without has requests come when something has happened to the server, after which it does not answer.
func (w *world) without(deny bool, happen func(*service)) *tally {
	w.Helper()
	_, redis := w.redis()
	up := w.upstream(hello)
	s := w.serve(perUser("deny"), redis, awaitsRedis)
	w.proxyIsUp(s, up)
	p := w.proxy(setup{example: "envoy", deny: deny, timeout: envoyTimeout}, up, s)
	happen(s)
	const n = 40
	y := w.send(p, few(n)...)
	want := n
	if deny {
		want = 0
	}
	w.got(y.passed == want && y.failed == n-want && up.all() == want, "%d of %d pass, %d get 500, %d reach the upstream", y.passed, n, y.failed, up.all())
	w.adds(p, up, y)
	return y
}

// proxyIsUp makes sure that the server decides: another proxy, which is patient, lets nothing of it be seen in up.
func (w *world) proxyIsUp(s *service, up *upstream) {
	w.Helper()
	before := w.upstream(hello)
	p := w.proxy(setup{example: "envoy", deny: true, timeout: patient}, before, s)
	if y := w.send(p, same(12)...); y.passed != 10 || up.all() != 0 {
		w.Fatalf("%d of 12 pass while nothing is wrong, want 10", y.passed)
	}
}

// adds compares what the filter has counted with what came of the requests.
func (w *world) adds(p *proxy, up *upstream, y *tally) {
	w.Helper()
	s := p.counts()
	good := y.odd == 0 && y.rejected == s.over && y.failed == s.failed-s.allowed && y.passed == s.ok+s.allowed && up.all() == y.passed
	if !good {
		w.got(false, "Envoy counts ok %d, over_limit %d, error %d, failure_mode_allowed %d; callers %d passed, %d rejected, %d failed, %d odd (%d)",
			s.ok, s.over, s.failed, s.allowed, y.passed, y.rejected, y.failed, y.odd, y.firstOdd)
	}
}

// drained ends one of two servers while requests come.
func (w *world) drained(deny bool) {
	_, redis := w.redis()
	up := w.upstream(hello)
	one, other := w.serve(perUser("error"), redis, awaitsRedis, "DRAIN_DELAY=5s"), w.serve(perUser("error"), redis, awaitsRedis, "DRAIN_DELAY=5s")
	p := w.proxy(setup{example: "envoy", deny: deny, timeout: patient}, up, one, other)
	stop := w.flow(p, 100, few(10_000)...)
	testkit.Eventually(w, "requests come", func() bool { return up.all() > 20 })
	begin := time.Now()
	testkit.Check(w, one.Signal(syscall.SIGTERM))
	_ = one.Wait() // how it ends is not asked here
	took := time.Since(begin)
	n := up.all()
	testkit.Eventually(w, "requests come when it has ended", func() bool { return up.all() > n+100 })
	y := stop()
	s := p.counts()
	w.got(y.passed == y.all && s.ok == y.all && up.all() == y.all, "%d of %d pass, %d of them decided; the server took %.1f s to end",
		y.passed, y.all, s.ok, took.Seconds())
	w.adds(p, up, y)
}

// faultsOfRedis are those of which the server knows.
func faultsOfRedis() (all []example) {
	for _, policy := range []string{"error", "allow", "deny", "local"} {
		for _, deny := range []bool{false, true} {
			want := map[string]string{
				"error": "all pass", "allow": "all pass", "deny": "none pass, all get 429", "local": "10 of 40, the limit",
			}[policy]
			if policy == "error" && deny {
				want = "none pass, all get 500"
			}
			all = append(all, example{
				name: fmt.Sprintf("Redis away, on_failure: %s, %s", policy, mode(deny)), want: want, peer: policy == "error",
				play: func(w *world) { w.away(policy, deny) },
			})
		}
	}
	return append(all, example{
		name: "Redis hangs, on_failure: deny, 20 ms", want: "decided in time: at least 95 of 100 get 429, though Envoy would let pass", effort: whole, peer: true,
		play: hanging,
	})
}

// away has requests come when Redis does not.
func (w *world) away(policy string, deny bool) {
	redis, at := w.redis()
	up := w.upstream(hello)
	timeout := patient
	if w.other { // it may wait for Redis longer than anyone would for it
		timeout = envoyTimeout
	}
	p := w.proxy(setup{example: "envoy", deny: deny, timeout: timeout}, up, w.serve(perUser(policy), at))
	redis.Kill()
	const n = 40
	y := w.send(p, same(n)...)
	passed, rejected := n, 0
	switch {
	case policy == "error" && deny:
		passed = 0
	case policy == "deny":
		passed, rejected = 0, n
	case policy == "local":
		passed, rejected = 10, n-10
	}
	w.got(y.passed == passed && y.rejected == rejected && up.all() == passed,
		"%d of %d pass, %d get 429, %d get 500, %d reach the upstream", y.passed, n, y.rejected, y.failed, up.all())
	w.adds(p, up, y)
}

// hanging has Envoy wait no longer than it does by default, while Redis does not answer.
func hanging(w *world) {
	redis, at := w.redis()
	up := w.upstream(hello)
	s := w.serve(perUser("deny"), at)
	p := w.proxy(setup{example: "envoy", timeout: envoyTimeout}, up, s)
	testkit.Eventually(w, "a request is decided in time", func() bool { w.ask(p, "/", "before"); return p.counts().ok > 0 })
	before := p.counts()
	let := up.all()
	redis.Stop()
	const n = 500
	stop := w.flow(p, 100, few(10_000)...)
	testkit.Eventually(w, "all requests have come", func() bool {
		now := p.counts()
		return now.ok+now.over+now.failed-before.ok-before.over-before.failed >= n
	})
	y := stop()
	w.got(y.rejected*100 >= 95*y.all, "%d of %d get 429; %d reach the upstream", y.rejected, y.all, up.all()-let)
	if s := strings.TrimSpace(p.log()); y.odd > 0 {
		w.Error(s)
	}
}
