package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// bounded is a rule whose bound is checked.
type bounded struct {
	name, lines string
	limit       proof.Limit
	spacing     time.Duration // interval at which a client is never rejected
}

const (
	boundHits   = 20
	boundWindow = 2 * time.Second
)

// boundedRules returns the rules to check. The keys are distributed evenly over them.
func boundedRules() []bounded {
	const each = boundWindow / boundHits
	of := func(l proof.Limit) proof.Limit {
		l.Hits, l.Window = boundHits, proof.Micros(boundWindow.Microseconds())
		return l
	}
	return []bounded{
		{"fixed", "", of(proof.Limit{Algorithm: proof.FixedWindow, CountRefused: true}), each},
		{"sliding", "      algorithm: sliding_window #+\n      precision: 10 #+\n", of(proof.Limit{Algorithm: proof.SlidingWindow, Precision: 10}), each * 13 / 10},
		{"log", "      algorithm: sliding_log #+\n", of(proof.Limit{Algorithm: proof.SlidingLog}), each * 11 / 10},
		{"bucket", "      algorithm: token_bucket #+\n", of(proof.Limit{Algorithm: proof.TokenBucket, Burst: boundHits, Initial: boundHits}), each},
	}
}

// admitted returns a call with one admitted hit.
func (b bounded) admitted(sent, done time.Time) proof.Call {
	return proof.Call{
		Sent: proof.Micros(sent.UnixMicro()), Done: proof.Micros(done.UnixMicro()) + 1, Hits: 1,
		Outcome: proof.Admitted, Under: []*proof.Setting{{Name: b.name, Limits: []proof.Limit{b.limit}}},
	}
}

// siege is the state of check A3.
type siege struct {
	rules []bounded
	keys  int
	begin time.Time

	sent, failed, rejected, honest atomic.Int64

	mu       sync.Mutex
	admitted [][]proof.Call // by key
}

func windowBounds(ctx context.Context, e *env) {
	const total, attackers, batch = 1_000_000, 64, 50
	g := &siege{rules: boundedRules(), keys: 200, begin: time.Now(), admitted: make([][]proof.Call, 200)}
	if e.other {
		g.rules = g.rules[:1]
	}
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for _, b := range g.rules {
		// A window of two seconds ends many times in a minute, and is not a unit.
		fmt.Fprintf(&rules, "  - key: %s\n    rate_limit:\n      unit: second\n      requests_per_unit: %d\n      unit_multiplier: 2 #+\n%s", b.name, boundHits, b.lines)
	}
	if e.other {
		for i := range g.rules {
			g.rules[i].limit.Window, g.rules[i].spacing = g.rules[i].limit.Window/2, g.rules[i].spacing/2
		}
	}
	r := e.redis(ctx)
	s := e.startServer(ctx, rules.String(), "REDIS_URL="+r.addr, patient)
	all := callers(8, s)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	attack, over := context.WithCancel(ctx)
	defer over()
	var wg, good sync.WaitGroup
	for i, b := range g.rules {
		good.Go(func() { g.comply(attack, all[i%len(all)], b) })
	}
	for i := range attackers {
		wg.Go(func() {
			for g.sent.Add(batch) <= total && attack.Err() == nil {
				g.burst(attack, all[i%len(all)], i, batch)
			}
		})
	}
	wg.Wait()
	over()
	good.Wait()
	above, admitted := 0, 0
	for k, calls := range g.admitted {
		admitted += len(calls)
		for _, x := range proof.Check(calls, 1) {
			above++
			e.note("key %d, %s: %d hits in %d µs, of %v: %s", k, g.rules[k%len(g.rules)].name, x.Worst.Hits, x.Worst.To-x.Worst.From, x.Worst.Most, x.Promise)
		}
	}
	e.measured(g.sent.Load() >= total && ctx.Err() == nil, "%d hits, %d admitted, in %.1f s", total, admitted, time.Since(g.begin).Seconds())
	e.measured(above == 0, "%d above the bounds", above)
	e.measured(g.rejected.Load() == 0 && g.honest.Load() > 20, "compliant clients rejected %d of %d", g.rejected.Load(), g.honest.Load())
	e.measured(g.failed.Load() == 0, "%d failed", g.failed.Load())
}

// burst takes one hit from each of many keys, often just before or after the edge of a window.
func (g *siege) burst(ctx context.Context, c rlsv3.RateLimitServiceClient, caller, batch int) {
	if n := g.sent.Load() / int64(batch); n%97 == int64(caller) {
		now := time.Now()
		_ = sleep(ctx, now.Truncate(time.Second).Add(time.Second-time.Millisecond).Sub(now))
	}
	q := ask("d")
	first := caller * 7 % g.keys
	for i := range batch {
		k := (first + int(g.sent.Load()) + i) % g.keys
		q.Descriptors = append(q.Descriptors, desc(fmt.Sprintf("%s=k%d", g.rules[k%len(g.rules)].name, k)))
	}
	sent := time.Now()
	answer, err := c.ShouldRateLimit(ctx, q)
	done := time.Now()
	if err != nil {
		g.failed.Add(1)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, st := range answer.GetStatuses() {
		if st.GetCode() != rlsv3.RateLimitResponse_OK {
			continue
		}
		var k int
		value := q.GetDescriptors()[i].GetEntries()[0].GetValue()
		if _, err := fmt.Sscanf(value, "k%d", &k); err == nil {
			g.admitted[k] = append(g.admitted[k], g.rules[k%len(g.rules)].admitted(sent, done))
		}
	}
}

// comply is a compliant client: it waits for b.spacing after each answer.
func (g *siege) comply(ctx context.Context, c rlsv3.RateLimitServiceClient, b bounded) {
	for sleep(ctx, b.spacing) == nil {
		answer, err := c.ShouldRateLimit(ctx, ask("d", b.name+"=good"))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			g.failed.Add(1)
		case answer.GetOverallCode() != rlsv3.RateLimitResponse_OK:
			g.rejected.Add(1)
			g.honest.Add(1)
		default:
			g.honest.Add(1)
		}
	}
}
