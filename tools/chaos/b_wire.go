package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

func redisWire(ctx context.Context, e *env) error {
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	if err := e.hangs(ctx, r); err != nil {
		return err
	}
	if err := e.pieces(ctx, r); err != nil {
		return err
	}
	return e.cuts(ctx, r)
}

// hangs has Redis stand still in three ways, and measures how long it takes until no call waits for it any more.
func (e *env) hangs(ctx context.Context, r *store) error {
	w, err := e.wire(ctx, r.addr)
	if err != nil {
		return err
	}
	s, err := e.startServer(ctx, byPolicy(1_000_000), "REDIS_URL="+w.addr)
	if err != nil {
		return err
	}
	l := load{addr: s.grpc, requests: callsByPolicy(25), rate: 1000, timeout: envoyTimeout, patience: time.Second}.start(ctx)
	type fault struct {
		name       string
		length     time.Duration
		begin, end func() error
		from, to   time.Duration
	}
	bad := func(kind string, attributes map[string]any) (begin, end func() error) {
		return func() error { return w.poison(kind, attributes) }, func() error { return w.cure(ctx, kind) }
	}
	hole, filled := bad("timeout", map[string]any{"timeout": 0})
	reset, stopped := bad("reset_peer", map[string]any{"timeout": 0})
	faults := []*fault{
		{name: "SIGSTOP", length: 5 * time.Second, begin: r.Pause, end: r.Resume},
		{name: "blackhole", length: 1500 * time.Millisecond, begin: hole, end: filled},
		{name: "reset", length: 1500 * time.Millisecond, begin: reset, end: stopped},
	}
	for _, f := range faults {
		if err := sleep(ctx, 1500*time.Millisecond); err != nil {
			return err
		}
		f.from = l.now()
		if err := f.begin(); err != nil {
			return err
		}
		_ = sleep(ctx, f.length)
		f.to = l.now()
		if err := f.end(); err != nil {
			return err
		}
	}
	_ = sleep(ctx, 1500*time.Millisecond)
	end := l.now()
	all := l.stop()
	for i, f := range faults {
		during, until := all.between(f.from, f.to), end
		if i+1 < len(faults) {
			until = faults[i+1].from - 2*envoyTimeout // what is on its way then is of the next fault
		}
		after := all.between(f.to+time.Second, until)
		e.note("%s: %s; a second later %s", f.name, during, after)
		noticed := detection(during, f.from)
		e.measured(noticed <= 100*time.Millisecond, "%s noticed after %s", f.name, ms(noticed))
		wrong := len(after) - len(after.of(okay))
		e.measured(after.share(wrong) <= 0.01, "%d of %d wrong a second after", wrong, len(after))
	}
	return nil
}

// detection returns how long after a time calls have been answered at once again.
func detection(all outcomes, from time.Duration) time.Duration {
	const fast = 10 * time.Millisecond
	return all.settled(from, func(o outcome) bool { return o.took > fast })
}

// settled returns how long after a time calls have not been bad for a fifth of a second, all but one in fifty, because
// machines have other things to do as well.
func (all outcomes) settled(from time.Duration, bad func(outcome) bool) time.Duration {
	const steady, step = 200 * time.Millisecond, 5 * time.Millisecond
	for after := time.Duration(0); ; after += step {
		some := all.between(from+after, from+after+steady)
		if len(some.that(bad)) <= len(some)/50 {
			return after
		}
	}
}

// pieces has replies arrive byte by byte, and looks whether a call gets the reply to another call: of a key whose limit
// is its number, that many calls may pass.
func (e *env) pieces(ctx context.Context, r *store) error {
	w, err := e.wire(ctx, r.addr)
	if err != nil {
		return err
	}
	if err := w.poison("slicer", map[string]any{"average_size": 3, "size_variation": 2, "delay": 20}); err != nil {
		return err
	}
	const keys = 40
	var rules strings.Builder
	rules.WriteString("domain: pieces\ndescriptors:\n")
	var calls [][]byte
	for k := range keys {
		fmt.Fprintf(&rules, "  - key: k%d\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", k, 1+k)
		calls = append(calls, request("pieces", fmt.Sprintf("k%d=a", k)))
	}
	s, err := e.startServer(ctx, rules.String(), "REDIS_URL="+w.addr, "NEAR_CACHE_KEYS=0")
	if err != nil {
		return err
	}
	all := load{addr: s.grpc, requests: calls, rate: 1000, patience: 2 * time.Second}.run(ctx, 2500*time.Millisecond)
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
	return nil
}

// cuts cuts a thousand connections anywhere, and compares what was counted with what was acknowledged.
func (e *env) cuts(ctx context.Context, r *store) error {
	const cuts, servers, most, values = 1000, 4, 30 * time.Second, 50
	g, err := e.gate(ctx, r.addr)
	if err != nil {
		return err
	}
	var all []*server
	for range servers {
		s, err := e.startServer(ctx, "domain: cuts\ndescriptors:\n  - key: k\n    rate_limit:\n      unit: hour\n      requests_per_unit: 4000000\n      lease: off #+\n",
			"REDIS_URL="+g.addr)
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	var calls [][]byte
	for v := range values {
		calls = append(calls, request("cuts", fmt.Sprintf("k=v%d", v)))
	}
	g.within.Store(3_000)
	g.cutAll()
	var loads []*running
	for _, s := range all {
		loads = append(loads, load{addr: s.grpc, requests: calls, rate: 750, timeout: envoyTimeout, conns: 1}.start(ctx))
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
	forever, keys, err := r.withoutTTL(ctx)
	if err != nil {
		return err
	}
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
	return e.counted(ctx, all[0], acked, unsure)
}

// counted compares counters with what was acknowledged: acked ≤ counted ≤ acked + unsure.
func (e *env) counted(ctx context.Context, s *server, acked, unsure []int) error {
	client, err := s.rls()
	if err != nil {
		return err
	}
	const limit = 4_000_000
	lost, many, total := 0, 0, 0
	for v := range acked {
		// A connection may have to be opened once more.
		var left int
		if _, ok := poll(ctx, 5*time.Second, func() bool {
			resp, err := client.ShouldRateLimit(ctx, ask("cuts", fmt.Sprintf("k=v%d", v)))
			if err != nil || len(resp.GetStatuses()) == 0 {
				unsure[v]++
				return false
			}
			left = int(resp.GetStatuses()[0].GetLimitRemaining())
			return true
		}); !ok {
			return fmt.Errorf("no answer after connections were cut")
		}
		n := limit - left - 1 // this call counts, too
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
	return nil
}
