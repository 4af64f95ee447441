package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

func redisWire(ctx context.Context, e *env) {
	r := e.redis(ctx)
	e.hangs(ctx, r)
	e.pieces(ctx, r)
	e.cuts(ctx, r)
}

// hangs stalls Redis in three ways, and measures the time until calls no longer wait for it.
func (e *env) hangs(ctx context.Context, r *store) {
	w := e.wire(ctx, r.addr)
	s := e.startServer(ctx, byPolicy(1_000_000), "REDIS_URL="+w.addr)
	l := load{addr: s.GRPC, requests: callsByPolicy(25), rate: 1000, timeout: envoyTimeout, patience: time.Second}.start(ctx)
	type fault struct {
		name       string
		length     time.Duration
		begin, end func()
		from, to   time.Duration
	}
	bad := func(kind string, attributes map[string]any) (begin, end func()) {
		return func() { w.poison(kind, attributes) }, func() { w.cure(ctx, kind) }
	}
	hole, filled := bad("timeout", map[string]any{"timeout": 0})
	reset, stopped := bad("reset_peer", map[string]any{"timeout": 0})
	faults := []*fault{
		{name: "SIGSTOP", length: 5 * time.Second, begin: func() { e.must(r.Pause()) }, end: func() { e.must(r.Resume()) }},
		{name: "blackhole", length: 1500 * time.Millisecond, begin: hole, end: filled},
		{name: "reset", length: 1500 * time.Millisecond, begin: reset, end: stopped},
	}
	for _, f := range faults {
		e.sleep(ctx, 1500*time.Millisecond)
		f.from = l.now()
		f.begin()
		_ = sleep(ctx, f.length)
		f.to = l.now()
		f.end()
	}
	_ = sleep(ctx, 1500*time.Millisecond)
	end := l.now()
	all := l.stop()
	for i, f := range faults {
		during, until := all.between(f.from, f.to), end
		if i+1 < len(faults) {
			until = faults[i+1].from - 2*envoyTimeout // later calls belong to the next fault
		}
		after := all.between(f.to+time.Second, until)
		e.note("%s: %s; a second later %s", f.name, during, after)
		noticed := detection(during, f.from)
		e.measured(noticed <= 100*time.Millisecond, "%s noticed after %s", f.name, ms(noticed))
		wrong := len(after) - len(after.of(okay))
		e.measured(after.share(wrong) <= 0.01, "%d of %d wrong a second after", wrong, len(after))
	}
}

// detection returns the time after from until calls are answered fast again.
func detection(all outcomes, from time.Duration) time.Duration {
	const fast = 10 * time.Millisecond
	return all.settled(from, func(o outcome) bool { return o.took > fast })
}

// settled returns the time after from until at most one in fifty calls is bad for 200 ms. The exception is for busy machines.
func (all outcomes) settled(from time.Duration, bad func(outcome) bool) time.Duration {
	const steady, step = 200 * time.Millisecond, 5 * time.Millisecond
	for after := time.Duration(0); ; after += step {
		some := all.between(from+after, from+after+steady)
		if len(some.that(bad)) <= len(some)/50 {
			return after
		}
	}
}

// pieces delivers replies byte by byte, and checks that no call gets the reply of another: the limit of key k is k+1.
func (e *env) pieces(ctx context.Context, r *store) {
	w := e.wire(ctx, r.addr)
	w.poison("slicer", map[string]any{"average_size": 3, "size_variation": 2, "delay": 20})
	const keys = 40
	var rules strings.Builder
	rules.WriteString("domain: pieces\ndescriptors:\n")
	var calls [][]byte
	for k := range keys {
		fmt.Fprintf(&rules, "  - key: k%d\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", k, 1+k)
		calls = append(calls, request("pieces", fmt.Sprintf("k%d=a", k)))
	}
	s := e.startServer(ctx, rules.String(), "REDIS_URL="+w.addr, "NEAR_CACHE_KEYS=0")
	all := load{addr: s.GRPC, requests: calls, rate: 1000, patience: 2 * time.Second}.run(ctx, 2500*time.Millisecond)
	e.note("byte by byte: %s", all)
	wrong, unsure, due := 0, 0, 0
	counts, passed := make([]int, keys), make([]int, keys)
	for _, o := range all {
		counts[o.what]++
		passed[o.what] += boolInt(o.kind == okay)
	}
	for k := range keys {
		wrong += boolInt(passed[k] > 1+k)
		admits := min(1+k, counts[k])
		unsure, due = unsure+max(0, admits-passed[k]), due+admits
	}
	e.note("of %d hits to be admitted %d are missing, of calls that were given up", due, unsure)
	e.measured(wrong == 0 && unsure <= due/10, "sliced replies: %d of %d keys above their limit, %d of %d hits missing", wrong, keys, unsure, due)
}

// cutLimit is never reached.
const cutLimit = 4_000_000

// cuts cuts a thousand connections at random bytes, and compares counters with acknowledged calls.
func (e *env) cuts(ctx context.Context, r *store) {
	const cuts, servers, most, values = 1000, 4, 30 * time.Second, 50
	g := e.gate(ctx, r.addr)
	all := e.startServers(ctx, servers, limited(cutLimit, "hour", "lease: off"), "REDIS_URL="+g.addr)
	var calls [][]byte
	for v := range values {
		calls = append(calls, request("d", fmt.Sprintf("k=v%d", v)))
	}
	g.within.Store(3_000)
	g.cutAll()
	var loads []*running
	for _, s := range all {
		loads = append(loads, load{addr: s.GRPC, requests: calls, rate: 750, timeout: envoyTimeout, conns: 1}.start(ctx))
	}
	took, enough := poll(ctx, most, func() bool { return g.cuts.Load() >= cuts })
	g.within.Store(0)
	g.cutAll()
	var sum outcomes
	for _, l := range loads {
		sum = append(sum, l.stop()...)
	}
	e.note("cuts: %s", sum)
	e.measured(enough, "%d connections cut in %.0f s", g.cuts.Load(), took.Seconds())
	forever, keys := r.withoutTTL(ctx)
	e.measured(forever == 0 && keys >= values, "%d of %d keys without TTL", forever, keys)
	acked := make([]int, values)
	unsure := make([]int, values)
	for _, o := range sum {
		if o.kind == okay {
			acked[o.what]++
		} else {
			unsure[o.what]++
		}
	}
	e.counted(ctx, all[0], acked, unsure)
}

// counted compares counters with acknowledged calls: acked ≤ counted ≤ acked + unsure.
func (e *env) counted(ctx context.Context, s *server, acked, unsure []int) {
	client := s.rls()
	lost, many, total := 0, 0, 0
	for v := range acked {
		// A connection may have to be reopened.
		var left int
		e.await(ctx, "a decision after connections were cut", func() bool {
			resp, err := client.ShouldRateLimit(ctx, ask("d", fmt.Sprintf("k=v%d", v)))
			if err != nil || len(resp.GetStatuses()) == 0 {
				unsure[v]++
				return false
			}
			left = int(resp.GetStatuses()[0].GetLimitRemaining())
			return true
		})
		n := cutLimit - left - 1 // without this call
		total += n
		if n < acked[v] {
			lost += acked[v] - n
			e.note("value %d: %d counted, %d acknowledged", v, n, acked[v])
		}
		if n > acked[v]+unsure[v] {
			many += n - acked[v] - unsure[v]
			e.note("value %d: %d counted, %d acknowledged and %d unknown", v, n, acked[v], unsure[v])
		}
	}
	e.measured(lost == 0 && many == 0, "%d hits counted, %d acknowledged, %d unknown: %d lost, %d too many", total, sumOf(acked), sumOf(unsure), lost, many)
}
