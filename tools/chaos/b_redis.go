package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"google.golang.org/grpc/codes"
)

// redisFaults returns the checks of group B.
func redisFaults() []check {
	return []check{
		{"B9", "start without Redis, then with it", "ports ≤ 1 s; fallback p99 ≤ 5 ms; exact ≤ 1 s after Redis is up", true, startWithoutRedis},
		{
			"B10", "Redis is killed and started again, 3 times, the last time after a minute, with each on_failure",
			"p99 ≤ 25 ms in the first second, then ≤ 5 ms; 100 % answered in time, by on_failure; recovery ≤ 1 s", true, redisDies,
		},
		{"B11", "Redis answers after 1 s ± 200 ms, for 10 s", "p99 ≤ 25 ms; goroutines ≤ base + 1,100; RSS +≤ 50 MB", true, redisSlow},
		{
			"B12", "Redis hangs for 5 s; blackhole, reset, sliced bytes, 1,000 connections cut anywhere",
			"detection ≤ 100 ms; 0 keys without TTL; acked ≤ counted ≤ acked + unknown", true, redisWire,
		},
	}
}

// policies returns the values of on_failure. Request i of callsByPolicy uses policy i modulo 4.
func policies() []string { return []string{"error", "allow", "deny", "local"} }

// byPolicy returns rules with a key for each policy and a limit of n per hour.
func byPolicy(n int) string {
	var rules strings.Builder
	rules.WriteString("domain: shop\ndescriptors:\n")
	for _, p := range policies() {
		fmt.Fprintf(&rules, "  - key: %s\n    rate_limit:\n      unit: hour\n      requests_per_unit: %d\n      on_failure: %[1]s #+\n      lease: off #+\n", p, n)
	}
	for i := range outagesOfLocal {
		fmt.Fprintf(&rules, "  - key: scarce%d\n    rate_limit: {unit: hour, requests_per_unit: %d, on_failure: local, lease: off} #+\n", i, scarce)
	}
	return rules.String()
}

const (
	outagesOfLocal = 3  // outages with their own key: scarce0, scarce1, …
	scarce         = 40 // per hour
)

// countsLocally checks that the limit holds for a server without Redis and on_failure: local.
func (e *env) countsLocally(ctx context.Context, s *server, outage int) {
	if e.other {
		return
	}
	c := s.rls()
	const more = 20
	d := drain(ctx, c, fmt.Sprintf("scarce%d", outage), scarce+more, quota{scarce, time.Hour})
	e.note("outage %d, local: %d admitted, %d rejected%s", outage+1, d.admitted, d.rejected, prefixed(d.odd))
	if d.admitted != scarce || d.rejected != more {
		e.measured(false, "local admits %d of %d, and rejects %d, limit %d%s", d.admitted, scarce+more, d.rejected, scarce, prefixed(d.odd))
	}
}

// callsByPolicy returns requests for byPolicy, with several values of each key.
func callsByPolicy(values int) (all [][]byte) {
	for v := range values {
		for _, p := range policies() {
			all = append(all, request("shop", fmt.Sprintf("%s=v%d", p, v)))
		}
	}
	return all
}

// byThePolicy reports whether an outcome is in time and matches the request's on_failure while Redis is unavailable. For another
// server, which has no on_failure, it expects an error in time.
func (e *env) byThePolicy(o outcome) bool {
	if e.other {
		return o.kind == failed
	}
	switch policies()[int(o.what)%len(policies())] {
	case "error":
		return o.kind == failed && o.code == codes.Unavailable
	case "deny":
		return o.kind == over
	default:
		return o.kind == okay
	}
}

func startWithoutRedis(ctx context.Context, e *env) {
	port := e.port(ctx)
	s := e.server(ctx, byPolicy(100), "REDIS_URL=127.0.0.1:"+port)
	begin := time.Now()
	e.must(s.Launch())
	open, up := poll(ctx, time.Second, func() bool { return proc.Listens(s.GRPC)(ctx) == nil && proc.Listens(s.HTTP)(ctx) == nil })
	if e.measured(up, "ports after %s", ms(open)); up {
		all := load{addr: s.GRPC, requests: callsByPolicy(25), rate: 1000, timeout: envoyTimeout, patience: time.Second}.run(ctx, 2*time.Second)
		e.note("without Redis: %s", all)
		wrong := len(all.that(func(o outcome) bool { return !e.byThePolicy(o) }))
		e.measured(wrong == 0, "%d of %d answered in time", len(all)-wrong, len(all))
		e.measured(all.p(0.99) <= 5*time.Millisecond, "fallback p99 %s", ms(all.p(0.99)))
		e.countsLocally(ctx, s, 0)
	}
	e.sleep(ctx, time.Until(begin.Add(3*time.Second)))
	e.must(e.redisAt(port).Start(ctx))
	first, ok := firstExact(ctx, s)
	e.measured(ok && first <= time.Second, "exact %s after Redis is up", ms(first))
	if !ok {
		return
	}
	const limit, hits = 100, 300
	all := load{addr: s.GRPC, requests: [][]byte{request("shop", "deny=exact")}, rate: 1000, patience: time.Second}.run(ctx, hits*time.Millisecond)
	e.note("of %d per hour: %s", limit, all)
	e.measured(len(all.of(okay)) == limit && len(all.of(okay, over)) == len(all), "then %d of %d admitted, limit %d", len(all.of(okay)), len(all), limit)
}

// firstExact returns the time until a rule with on_failure: error is decided.
func firstExact(ctx context.Context, s *server) (time.Duration, bool) {
	one := load{addr: s.GRPC, requests: [][]byte{request("shop", "error=first")}, rate: 200, timeout: envoyTimeout, conns: 1}
	begin := time.Now()
	found := make(chan time.Duration, 1)
	one.each = func(o outcome) {
		if o.kind == okay {
			select {
			case found <- time.Since(begin):
			default:
			}
		}
	}
	running := one.start(ctx)
	defer running.stop()
	select {
	case d := <-found:
		return d, true
	case <-time.After(10 * time.Second):
		return time.Since(begin), false
	}
}

// outage is a period without Redis, in times of the load.
type outage struct {
	number             int
	killed, sure, back time.Duration // Redis is certainly unavailable until sure
}

// last waits until Redis has been unavailable for away. Meanwhile it checks that the server counts locally.
func (o *outage) last(ctx context.Context, s *server, l *running, away time.Duration) {
	s.e.sleep(ctx, time.Second)
	s.e.countsLocally(ctx, s, o.number)
	s.e.sleep(ctx, away-(l.now()-o.killed))
	o.sure = l.now()
}

func redisDies(ctx context.Context, e *env) {
	r := e.redis(ctx)
	s := e.startServer(ctx, byPolicy(1_000_000), "REDIS_URL="+r.addr)
	l := load{addr: s.GRPC, requests: callsByPolicy(25), rate: 2000, timeout: envoyTimeout, patience: time.Second}.start(ctx)
	var outages []outage
	for i, away := range []time.Duration{2500 * time.Millisecond, 2500 * time.Millisecond, time.Minute} {
		e.sleep(ctx, 1500*time.Millisecond)
		o := outage{number: i, killed: l.now()}
		e.note("Redis is killed at %.3f s of the load", o.killed.Seconds())
		r.Kill()
		o.last(ctx, s, l, away)
		e.must(r.Start(ctx))
		o.back = l.now()
		e.note("Redis is back at %.3f s", o.back.Seconds())
		outages = append(outages, o)
	}
	e.sleep(ctx, 1500*time.Millisecond)
	end := l.now()
	all := l.stop()
	e.note("all: %s", all)
	var first, then, away outcomes
	recovery := time.Duration(0)
	for i, o := range outages {
		first = append(first, all.between(o.killed, o.killed+time.Second)...)
		then = append(then, all.between(o.killed+time.Second, o.sure)...)
		// A call in flight at the kill may have been counted.
		away = append(away, all.between(o.killed+5*time.Millisecond, o.sure)...)
		until := end
		if i+1 < len(outages) {
			until = outages[i+1].killed - 2*envoyTimeout // later calls belong to the next outage
		}
		back := all.between(o.back, until)
		e.note("outage %d: first second %s; then %s; back %s", i+1, all.between(o.killed, o.killed+time.Second), all.between(o.killed+time.Second, o.sure), back)
		recovery = max(recovery, back.settled(o.back, func(o outcome) bool { return o.kind != okay }))
	}
	wrong := away.that(func(o outcome) bool { return !e.byThePolicy(o) })
	for _, o := range wrong[:min(len(wrong), 10)] {
		e.note("not as %s says: %v %v due at %.3f s, took %s", policies()[int(o.what)%4], o.kind, o.code, o.due.Seconds(), ms(o.took))
	}
	e.measured(first.p(0.99) <= 25*time.Millisecond, "first second p99 %s", ms(first.p(0.99)))
	e.measured(then.p(0.99) <= 5*time.Millisecond, "then %s", ms(then.p(0.99)))
	e.measured(len(wrong) == 0, "%d of %d answered in time while Redis is unavailable", len(away)-len(wrong), len(away))
	e.measured(recovery <= time.Second, "recovery %s", ms(recovery))
	e.throughEnvoy(away)
}

// throughEnvoy publishes how many requests Envoy would have admitted although the fallback rejects them.
func (e *env) throughEnvoy(all outcomes) {
	if e.other {
		seen := all.asEnvoy()
		e.published("Envoy lets %d of %d pass (%d with failure_mode_deny)", seen.through(false), len(seen), seen.through(true))
		return
	}
	deny := all.that(func(o outcome) bool { return policies()[int(o.what)%4] == "deny" }).asEnvoy()
	e.published("of deny Envoy lets %d of %d pass (%d with failure_mode_deny)", deny.through(false), len(deny), deny.through(true))
}

func redisSlow(ctx context.Context, e *env) {
	r := e.redis(ctx)
	w := e.wire(ctx, r.addr)
	s := e.startServer(ctx, byPolicy(1_000_000), "REDIS_URL="+w.addr)
	l := load{addr: s.GRPC, requests: callsByPolicy(25), rate: 2000, timeout: envoyTimeout, patience: 3 * time.Second}.start(ctx)
	e.sleep(ctx, 2*time.Second)
	goroutines, memory := s.metric(ctx, "go_goroutines"), s.rss()
	from := l.now()
	peak := s.peakRSS()
	w.poison("latency", map[string]any{"latency": 1000, "jitter": 200})
	most := 0.0
	for l.now() < from+10*time.Second {
		e.sleep(ctx, 200*time.Millisecond)
		most = max(most, s.metric(ctx, "go_goroutines"))
	}
	until := l.now()
	w.cure(ctx, "latency")
	more := peak() - memory
	e.sleep(ctx, 2*time.Second)
	all := l.stop()
	slow := all.between(from+10*time.Millisecond, until)
	e.note("before: %s", all.between(0, from))
	e.note("slow: %s", slow)
	e.note("after: %s", all.between(until, l.now()))
	e.measured(slow.p(0.99) <= 25*time.Millisecond, "p99 %s", ms(slow.p(0.99)))
	if !e.other || goroutines > 0 { // another server may lack this metric
		e.measured(goroutines > 0 && most > 0 && most <= goroutines+1100, "goroutines %.0f, before %.0f", most, goroutines)
	}
	e.measured(more <= 50<<20, "RSS + %s", mb(more))
	e.throughEnvoy(slow)
}
