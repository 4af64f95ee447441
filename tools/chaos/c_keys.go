package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

func hotKey(ctx context.Context, e *env) {
	r := e.redis(ctx)
	s := e.startServer(ctx, `domain: hot
descriptors:
  - key: roomy
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
  - key: tight
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000}
`, "REDIS_URL="+r.addr, "LOCAL_CACHE_SIZE_IN_BYTES=10000000")
	const keys = 10_000
	var spread, second [][]byte
	for k := range keys {
		spread = append(spread, request("hot", fmt.Sprintf("roomy=u%d", k)))
		if k < clients {
			second = append(second, request("hot", fmt.Sprintf("second=u%d", k)))
		}
	}
	// Alternate, because other work on the machine varies.
	var wide, narrow int
	for range 2 {
		wide += len(load{addr: s.GRPC, requests: spread}.run(ctx, 1500*time.Millisecond).of(okay))
		narrow += len(load{addr: s.GRPC, requests: [][]byte{request("hot", "roomy=all")}}.run(ctx, 1500*time.Millisecond).of(okay))
	}
	e.measured(float64(narrow) >= 0.7*float64(wide), "hot key %d calls, spread keys %d in the same time (%.0f %%)", narrow, wide, 100*float64(narrow)/float64(wide))
	rejected := [][]byte{request("hot", "tight=all")}
	load{addr: s.GRPC, requests: rejected, rate: 500}.run(ctx, 200*time.Millisecond)
	before := r.commands(ctx)
	all := load{addr: s.GRPC, requests: rejected}.run(ctx, 2*time.Second)
	commands := r.commands(ctx) - before
	e.note("over the limit: %s", all)
	e.measured(all.share(commands) <= 0.01 && len(all) > 0 && len(all.of(over)) == len(all), "over the limit %d Redis ops for %d calls", commands, len(all))
	edge, middle := lockstep(ctx, s, second)
	e.note("at the edge: %s", edge)
	e.note("in the middle: %s", middle)
	e.measured(edge.p(0.99) <= 2*middle.p(0.99), "edge p99 %s, middle %s", ms(edge.p(0.99)), ms(middle.p(0.99)))
}

// commands returns the number of commands that read or change counters.
func (r *store) commands(ctx context.Context) int {
	info, err := r.Info(ctx, "commandstats").Result()
	r.e.must(err)
	return sum(info, `(?im)^cmdstat_(?:eval|evalsha|incrby|get|mget):calls=(\d+)`)
}

// clients is the number of concurrent clients.
const clients = 1000

// lockstep makes 1,000 clients call simultaneously, at the edges of seconds and in the middle between them.
func lockstep(ctx context.Context, s *server, requests [][]byte) (edge, middle outcomes) {
	const rounds, conns = 8, 4
	begin := time.Now()
	first := begin.Truncate(time.Second).Add(time.Second).Sub(begin)
	l := load{addr: s.GRPC, requests: requests, conns: conns, patience: time.Second}
	l.at = func(_, n int) time.Duration {
		return first + time.Duration(n/(clients/conns))*time.Second/2
	}
	r := l.start(ctx)
	_ = sleep(ctx, first+rounds*time.Second/2-time.Second/4)
	for i, all := 0, r.stop(); i < rounds; i++ {
		due := first + time.Duration(i)*time.Second/2
		some := all.between(due, due+time.Second/4)
		if i < 2 {
			continue // connections and keys are new
		}
		if i%2 == 0 {
			edge = append(edge, some...)
		} else {
			middle = append(middle, some...)
		}
	}
	return edge, middle
}

func cardinality(ctx context.Context, e *env) {
	e.manyValues(ctx, false)
	e.manyDomains(ctx)
	if !e.other {
		e.manyValues(ctx, true)
	}
}

// manyValues sends a million distinct values.
func (e *env) manyValues(ctx context.Context, memory bool) {
	const values, wide = 1_000_000, 64
	vars := []string{"BACKEND_TYPE=memory"}
	var r *store
	if !memory {
		r = e.redis(ctx)
		vars = []string{"REDIS_URL=" + r.addr, patient}
	}
	s := e.startServer(ctx, "domain: many\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 100}\n", vars...)
	good := load{addr: s.GRPC, requests: [][]byte{request("many", "user=good")}, rate: 200, conns: 1, patience: time.Second}
	alone := good.run(ctx, 4*time.Second)
	before := e.look(ctx, s)
	peak := s.peakRSS()
	wideRequest := func(n int) []byte {
		some := make([]string, wide)
		for i := range some {
			some[i] = fmt.Sprintf("user=v%d", n*wide+i)
		}
		return request("many", some...)
	}
	var running *running
	if memory {
		running = good.start(ctx)
		flood(ctx, s, values/wide, wideRequest)
	} else {
		running = e.steadily(ctx, s, values/wide, wideRequest, good)
	}
	beside, most := running.stop(), peak()
	after := e.look(ctx, s)
	if memory {
		held := s.metric(ctx, "ratelimitd_memory_keys") // close to MEMORY_MAX_KEYS, which is divided among the parts of the table
		each := float64(after.heap-before.heap) / held
		e.measured(each <= 200 && held >= 0.95*values, "in memory %.0f bytes a counter, %.0f counters (RSS + %s)", each, held, mb(most-before.rss))
		return
	}
	e.note("good client alone: %s", alone)
	e.note("beside a million values: %s", beside)
	e.measured(most-before.rss <= 64<<20, "a million values: RSS + %s", mb(most-before.rss))
	e.measured(beside.p(0.99) <= 2*alone.p(0.99), "good client p99 %s, without others %s", ms(beside.p(0.99)), ms(alone.p(0.99)))
	forever, keys := r.withoutTTL(ctx)
	e.measured(forever == 0 && keys >= values, "%d of %d keys without TTL", forever, keys)
	e.sameSeries(before, after)
}

// manyDomains sends 100,000 domains without rules.
func (e *env) manyDomains(ctx context.Context) {
	const domains = 100_000
	r := e.redis(ctx)
	s := e.startServer(ctx, calmRules, "REDIS_URL="+r.addr)
	some := func(name string) func(int) []byte {
		return func(n int) []byte { return request(fmt.Sprint(name, n), "user=a") }
	}
	// Warm up the server, as in D26, and create the series of the first hundred domains, which the reference has too.
	load{addr: s.GRPC, requests: [][]byte{request("busy", "user=a")}, conns: 2}.run(ctx, 2*time.Second)
	flood(ctx, s, 5000, some("first"))
	before := e.look(ctx, s)
	peak := s.peakRSS()
	flood(ctx, s, domains, some("unknown"))
	most := peak()
	after := e.look(ctx, s)
	e.measured(most-before.rss <= 20<<20, "unknown domains: RSS + %s", mb(most-before.rss))
	e.sameSeries(before, after)
}

// sameSeries checks that there are no new series. Other servers may lack the metrics.
func (e *env) sameSeries(before, after looks) {
	if e.other {
		return
	}
	e.measured(after.series <= before.series, "series %d, before %d", after.series, before.series)
	e.measured(after.page <= 1<<20, "/metrics %.0f kB", float64(after.page)/1024)
}

// looks is the memory and the metrics of a server.
type looks struct {
	rss, heap    int64
	series, page int
}

// look measures a server after a garbage collection.
func (e *env) look(ctx context.Context, s *server) (l looks) {
	_, err := proc.Get(ctx, "http://"+s.Debug+"/debug/pprof/heap?gc=1")
	e.must(err)
	l.rss = s.rss()
	if e.other { // may lack the page
		return l
	}
	page, err := proc.Get(ctx, "http://"+s.Debug+"/metrics")
	e.must(err)
	all := proc.Series(page)
	l.page, l.series, l.heap = len(page), len(all), int64(all["go_memstats_heap_inuse_bytes"])
	return l
}

// flood sends requests as fast as they are answered. It generates them in lots.
func flood(ctx context.Context, s *server, requests int, next func(n int) []byte) {
	const lot, conns = 2000, 2
	for from := 0; from < requests && ctx.Err() == nil; from += lot {
		all := make([][]byte, min(lot, requests-from))
		for i := range all {
			all[i] = next(from + i)
		}
		l := load{addr: s.GRPC, requests: all, conns: conns, inflight: 8, total: len(all)}
		if n := len(l.run(ctx, time.Minute).of(okay, over)); n < len(all) {
			s.e.fail("%d of %d calls had no verdict", len(all)-n, len(all))
		}
	}
	runtime.GC() // collects garbage of this process
}

// steadily sends requests at two fifths of the maximum rate, and starts a good client beside them. This check is about the number
// of values; a surge would take the good client's share of the processors (C21). Requests are generated in advance, because
// generating one costs more than deciding it.
func (e *env) steadily(ctx context.Context, s *server, requests int, next func(n int) []byte, good load) *running {
	const share, conns = 0.4, 2
	all := make([][]byte, requests)
	for i := range all {
		all[i] = next(i)
	}
	runtime.GC() // collects garbage of this process
	first := all[:requests/5]
	begin := time.Now()
	fast := load{addr: s.GRPC, requests: first, conns: conns, inflight: 8, total: len(first)}.run(ctx, 0)
	peak := float64(len(first)) / time.Since(begin).Seconds()
	rest := all[len(first):]
	beside := good.start(ctx)
	slow := load{addr: s.GRPC, requests: rest, conns: conns, rate: share * peak}.run(ctx, time.Duration(float64(len(rest))/(share*peak)*float64(time.Second)))
	e.note("at most: %s; %.0f a second", fast, peak)
	e.note("at %.0f a second: %s", share*peak, slow)
	if n := len(fast.of(okay, over)) + len(slow.of(okay, over)); n < requests {
		e.fail("%d of %d calls had no verdict", requests-n, requests)
	}
	return beside
}

// crowded is the number of concurrent connections.
const crowded = 500

func crowd(ctx context.Context, e *env) {
	e.reconnects(ctx)
	e.noisy(ctx)
}

// reconnects connects 500 clients simultaneously, and then kills all client connections of Redis several times.
func (e *env) reconnects(ctx context.Context) {
	r := e.redis(ctx)
	g := e.gate(ctx, r.addr)
	g.slow.Store(int64(5 * time.Millisecond)) // so that concurrent dials overlap
	s := e.startServer(ctx, byPolicy(1_000_000), "REDIS_URL="+g.addr)
	quiet := load{addr: s.GRPC, requests: callsByPolicy(5), rate: 100, conns: 1, timeout: envoyTimeout, patience: time.Second}
	alone := quiet.run(ctx, time.Second)
	many := load{addr: s.GRPC, requests: callsByPolicy(100), rate: 1000, conns: crowded, timeout: envoyTimeout, patience: 3 * time.Second}
	for range 3 { // all clients disconnect and reconnect
		some := many.run(ctx, time.Second)
		e.note("%d connections: %s", crowded, some)
		e.measured(len(some.of(lost, late)) == 0, "%d of %d calls lost", len(some.of(lost, late)), len(some))
	}
	running := many.start(ctx)
	for range 5 {
		_ = sleep(ctx, 500*time.Millisecond)
		e.must(r.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	}
	_ = sleep(ctx, time.Second)
	now := running.now()
	all := running.stop()
	e.note("alone: %s", alone)
	e.note("while Redis loses its clients: %s", all)
	settled := all.between(now-500*time.Millisecond, now)
	wrong := len(settled) - len(settled.of(okay))
	e.measured(settled.share(wrong) <= 0.01, "half a second after the last: %d of %d wrong", wrong, len(settled))
	e.measured(g.most.Load() <= 4, "%d dials in flight at most (%d in all)", g.most.Load(), g.opened.Load())
	_, rejected, _ := strings.Cut(r.Info(ctx, "stats").Val(), "rejected_connections:")
	rejected, _, _ = strings.Cut(rejected, "\r")
	e.measured(rejected == "0", "rejected_connections %s", rejected)
}

// noisy loads a domain with 2 and 5 times the peak beside a quiet domain, on separate and on shared connections.
func (e *env) noisy(ctx context.Context) {
	e.pin()
	s := e.newSurge(ctx, work{descriptors: 16, policy: "deny"})
	s.server.serve("quiet.yaml", strings.Replace(calmRules, "domain: busy", "domain: quiet", 1))
	s.measurePeak(ctx, 2*time.Second)
	quiet := s.load()
	quiet.requests, quiet.rate, quiet.timeout, quiet.patience = wide("quiet", 16), s.peak/20, envoyTimeout, time.Second
	alone := quiet.run(ctx, 3*time.Second)
	e.note("quiet, alone: %s", alone)
	e.published("quiet domain by itself: p99 %s", ms(alone.p(0.99)))
	s.besideLoop(ctx, quiet)
	for _, level := range []struct{ k, asked float64 }{{2, 0.99}, {5, 0.95}} {
		got := s.beside(ctx, level.k, quiet)
		s.decided(fmt.Sprintf("beside %g × the peak", level.k), got.own, level.asked)
		s.decided(fmt.Sprintf("beside %g ×, on the same connections", level.k), got.same, level.asked)
	}
	s.publish()
}

// besideLoop measures the quiet domain's latency beside a busy loop: the cost of the kernel's time slices.
func (s *surge) besideLoop(ctx context.Context, quiet load) {
	e := s.e
	loop := e.process("loop", "sh", "-c", "while :; do :; done")
	e.must(loop.Launch())
	defer loop.Kill()
	busy := quiet.run(ctx, 3*time.Second)
	if worked := loop.busy(); worked < time.Second {
		e.fail("the loop beside a quiet domain worked for %v in 3 s", worked)
	}
	e.note("quiet, alone, on a processor that a loop keeps busy: %s", busy)
	e.published("quiet domain by itself, on a processor that a loop keeps busy: p99 %s", ms(busy.p(0.99)))
}

// besides has the outcomes of a quiet domain beside a noisy one.
type besides struct {
	own  outcomes // on separate connections
	same outcomes // on shared connections
}

// beside measures the quiet domain beside k times the peak. It measures the peak again first, because the speed of the machine
// varies.
func (s *surge) beside(ctx context.Context, k float64, quiet load) (b besides) {
	s.measure(ctx, s.inflight, again)
	loud := s.load()
	loud.rate, loud.timeout, quiet.rate = k*s.peak, envoyTimeout, s.peak/20
	noise := loud.start(ctx)
	_ = sleep(ctx, 500*time.Millisecond)
	own, calm := s.alone(func() outcomes { return quiet.run(ctx, 4*time.Second) })
	b.own = own
	s.disturbed = s.disturbed || !calm
	s.e.note("noisy at %g × the peak: %s", k, noise.stop())
	s.e.note("quiet beside it: %s", b.own)
	// Envoy sends many domains over one connection, so mix calls of both domains.
	s.measure(ctx, s.inflight, again)
	loud.rate, quiet.rate = k*s.peak, s.peak/20
	every := int(math.Round(loud.rate/quiet.rate)) + 1 // odd, so that each connection carries quiet calls
	both := loud
	both.requests, both.rate = nil, loud.rate+quiet.rate
	for i := range every * 20 {
		from := s.requests
		if i%every == 0 {
			from = quiet.requests
		}
		both.requests = append(both.requests, from[i%len(from)])
	}
	all, calm := s.alone(func() outcomes { return both.run(ctx, 4*time.Second) })
	s.disturbed = s.disturbed || !calm
	all = all.between(500*time.Millisecond, 4*time.Second)
	b.same = all.that(func(o outcome) bool { return int(o.what)%every == 0 })
	s.e.note("noisy at %g × the peak, and quiet: %s", k, all)
	s.e.note("quiet, on the same connections: %s", b.same)
	return b
}

// decided records the share of quiet calls that a counter decided in time, and notes some of the others.
func (s *surge) decided(where string, got outcomes, asked float64) {
	wrong := got.that(func(o outcome) bool { return o.kind != okay || o.took > envoyTimeout })
	share := 1 - got.share(len(wrong))
	s.figure(share >= asked && len(got) > 0, "quiet domain %s: %.1f %% of %d calls decided in time, p99 %s", where, 100*share, len(got), ms(got.p(0.99)))
	for _, o := range wrong[:min(len(wrong), 10)] {
		s.e.note("%s: due after %s, sent late by %s, %s after %s", where, ms(o.due), ms(o.lag), o.end(), ms(o.took))
	}
}
