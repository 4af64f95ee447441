package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// bounded is a rule whose bound is checked.
type bounded struct {
	name, lines string
	hits        int
	window      time.Duration
	spacing     time.Duration // at which a client that never sends sooner is never denied
	// most is the bound of the hits that may be admitted in any span of time; aligned says that only whole windows of
	// the clock have one of hits.
	most    func(span time.Duration) int
	aligned bool
}

const boundHits = 20

// boundedRules are those of which one key in so many is.
func boundedRules() []bounded {
	const w = 2 * time.Second
	windows := func(span time.Duration) int { return boundHits * int((span+w-1)/w) }
	each := w / boundHits
	return []bounded{
		{"fixed", "", boundHits, w, each, func(t time.Duration) int { return windows(t) + boundHits }, true},
		{"sliding", "      algorithm: sliding_window #+\n      precision: 10 #+\n", boundHits, w, each * 13 / 10, windows, false},
		{"log", "      algorithm: sliding_log #+\n", boundHits, w, each * 11 / 10, windows, false},
		{"bucket", "      algorithm: token_bucket #+\n", boundHits, w, each, func(t time.Duration) int { return boundHits + int(t/each) }, false},
	}
}

// above counts the spans, from the sending of one hit to the answer to another, in which more was surely admitted than
// the bound says.
func (b bounded) above(all []hit, clock time.Time) (n int) {
	byAnswer := slices.SortedFunc(slices.Values(all), func(x, y hit) int { return cmp.Compare(x.answered, y.answered) })
	for _, from := range all {
		sum := 0
		for _, h := range byAnswer {
			if h.sent < from.sent {
				continue
			}
			if sum++; sum > b.most(h.answered-from.sent) {
				n++
			}
		}
	}
	if !b.aligned {
		return n
	}
	counts := map[int64]int{}
	for _, h := range all {
		start, end := clock.Add(h.sent).UnixNano()/int64(b.window), clock.Add(h.answered).UnixNano()/int64(b.window)
		if start == end {
			if counts[start]++; counts[start] == b.hits+1 {
				n++
			}
		}
	}
	return n
}

// siege is the check A3 under way.
type siege struct {
	rules []bounded
	keys  int
	begin time.Time

	sent, failed, denied, honest atomic.Int64

	mu       sync.Mutex
	admitted [][]hit // of each key
}

func windowBounds(ctx context.Context, e *env) error {
	const total, attackers, batch = 1_000_000, 64, 50
	g := &siege{rules: boundedRules(), keys: 200, begin: time.Now(), admitted: make([][]hit, 200)}
	if e.other {
		g.rules = g.rules[:1]
	}
	var rules strings.Builder
	rules.WriteString("domain: d\ndescriptors:\n")
	for _, b := range g.rules {
		// A window of two seconds ends within a minute many times, and is not one of the units.
		fmt.Fprintf(&rules, "  - key: %s\n    rate_limit:\n      unit: second\n      requests_per_unit: %d\n      unit_multiplier: 2 #+\n%s", b.name, b.hits, b.lines)
	}
	if e.other {
		for i := range g.rules {
			g.rules[i].window, g.rules[i].spacing = g.rules[i].window/2, g.rules[i].spacing/2
			g.rules[i].most = func(t time.Duration) int { return boundHits * (2 + int(t/time.Second)) }
		}
	}
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	s, err := e.startServer(ctx, rules.String(), "REDIS_URL="+r.addr, patient)
	if err != nil {
		return err
	}
	all, err := callers(8, s)
	if err != nil {
		return err
	}
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
	for k, hits := range g.admitted {
		b := g.rules[k%len(g.rules)]
		admitted += len(hits)
		if n := b.above(hits, g.begin); n > 0 {
			above += n
			e.note("key %d, %s: %d spans above the bound, of %d hits", k, b.name, n, len(hits))
		}
	}
	e.measured(g.sent.Load() >= total && ctx.Err() == nil, "%d hits, %d admitted, in %.1f s", total, admitted, time.Since(g.begin).Seconds())
	e.measured(above == 0, "%d above the bounds", above)
	e.measured(g.denied.Load() == 0 && g.honest.Load() > 20, "compliant clients denied %d of %d", g.denied.Load(), g.honest.Load())
	e.measured(g.failed.Load() == 0, "%d failed", g.failed.Load())
	return nil
}

// burst takes a hit of many keys; often just before or after the edge of a window.
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
	sent := time.Since(g.begin)
	answer, err := c.ShouldRateLimit(ctx, q)
	answered := time.Since(g.begin)
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
			g.admitted[k] = append(g.admitted[k], hit{sent: sent, answered: answered})
		}
	}
}

// comply is a client that keeps to its limit: it sends its next hit so long after the answer to the last one.
func (g *siege) comply(ctx context.Context, c rlsv3.RateLimitServiceClient, b bounded) {
	for sleep(ctx, b.spacing) == nil {
		answer, err := c.ShouldRateLimit(ctx, ask("d", b.name+"=good"))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			g.failed.Add(1)
		case answer.GetOverallCode() != rlsv3.RateLimitResponse_OK:
			g.denied.Add(1)
			g.honest.Add(1)
		default:
			g.honest.Add(1)
		}
	}
}
