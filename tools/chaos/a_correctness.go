package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// correctness returns the checks of group A.
func correctness() []check {
	return []check{
		{
			"A1", "random sequences: the memory against the engine and its slow twin", "10,000 sequences × 100 operations, 0 differences", false,
			random("./pkg/backend/memory", "^TestBackend$/^Random$", 1250),
		},
		{
			"A2", "random sequences: the scripts, in a real Redis, against the same", "500 × 100 × 4 and more, 0 differences", false,
			random("./pkg/backend/redis", "^TestScripts$/^Random$", 500),
		},
		{
			"A3", "bounds of windows: 64 callers, 200 keys, in bursts at the edges of windows",
			"1,000,000 hits, 0 above the bounds; compliant clients rejected 0", true, windowBounds,
		},
		{"A4", "exactly once: 20,000 hits for 1,000, 32 callers", "3 runs, OK = 1,000, each number of hits left answered once", true, ladder},
		{"A5", "linearizable per key: 50 keys, 8 callers, of which 5 % give up", "20,000 operations, 0 violations, 0 checks without a result", false, linearizable},
		{"A6", "3 servers, 1 Redis, no leases", "OK = limit exactly, 5 runs", true, threeServers},
		{
			"A7", "leases on 3 servers: kill -9, SIGSTOP past the end of the lease, lost replies, 10 of each; every short history and random long ones",
			"Σ OK ≤ limit in 30 of 30; shortfall ≤ outstanding; 0 bad states", false, leases,
		},
		{
			"A8", "numbers at the edges: 9 costs × 3 limits × 7 units × 4 algorithms × 2 stores",
			"1,512 combinations: 0 panics, 0 gRPC errors, never OK when hits > limit", true, edges,
		},
	}
}

// patient is a setting for checks that count, on busy machines.
const patient = "REDIS_OP_TIMEOUT=10s"

// limited returns rules with a limit for the key k of the domain d. The lines own apply to ratelimitd only.
func limited(n int, unit string, own ...string) string {
	const indent = "\n      "
	rules := fmt.Sprintf("domain: d\ndescriptors:\n  - key: k\n    rate_limit:"+indent+"unit: %s"+indent+"requests_per_unit: %d", unit, n)
	if len(own) > 0 {
		rules += indent + strings.Join(own, " #+"+indent) + " #+"
	}
	return rules + "\n"
}

// party is a set of clients with one connection each.
type party []rlsv3.RateLimitServiceClient

func callers(n int, servers ...*server) (all party) {
	for i := range n {
		all = append(all, servers[i%len(servers)].rls())
	}
	return all
}

// tally sums the answers of calls.
type tally struct {
	mu     sync.Mutex
	left   []uint32 // remaining hits in OK answers
	over   int
	failed int
	first  error
}

// spend takes n hits of a descriptor, one at a time, from all clients concurrently.
func (all party) spend(ctx context.Context, domain, descriptor string, n int) *tally {
	t := new(tally)
	var next atomic.Int64
	var wg sync.WaitGroup
	for _, c := range all {
		wg.Go(func() {
			for next.Add(1) <= int64(n) && ctx.Err() == nil {
				answer, err := c.ShouldRateLimit(ctx, ask(domain, descriptor))
				t.add(answer, err)
			}
		})
	}
	wg.Wait()
	return t
}

func (t *tally) add(answer *rlsv3.RateLimitResponse, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err != nil:
		if t.failed++; t.first == nil {
			t.first = err
		}
	case answer.GetOverallCode() == rlsv3.RateLimitResponse_OK:
		t.left = append(t.left, answer.GetStatuses()[0].GetLimitRemaining())
	default:
		t.over++
	}
}

// returnedHits is the metric of refunded lease hits.
const returnedHits = "ratelimitd_near_cache_returned_total"

func ladder(ctx context.Context, e *env) {
	const limit, hits, runs = 1000, 20_000, 3
	r := e.redis(ctx)
	s := e.startServer(ctx, limited(limit, "year"), "REDIS_URL="+r.addr, patient)
	all := callers(32, s)
	for run := range runs {
		returned := s.metric(ctx, returnedHits)
		t := all.spend(ctx, "d", fmt.Sprintf("k=%d", run), hits)
		returned = s.metric(ctx, returnedHits) - returned
		slices.Sort(t.left)
		once := true
		for i, left := range t.left {
			once = once && left == uint32(i)
		}
		e.note("run %d: %d OK, %d over, %d failed (%v), %g leased hits went back, left %v", run, len(t.left), t.over, t.failed, t.first, returned,
			t.left[:min(20, len(t.left))])
		e.measured(len(t.left) == limit && t.failed == 0, "%d OK of %d, %d failed", len(t.left), hits, t.failed)
		// A lease that expires in a stall is refunded, and its numbers may then be answered twice.
		e.measured(once || returned > 0, "each number once: %s", yes(once))
	}
}

func threeServers(ctx context.Context, e *env) {
	const limit, hits, runs = 1000, 3000, 5
	r := e.redis(ctx)
	all := callers(24, e.startServers(ctx, 3, limited(limit, "year", "lease: off"), "REDIS_URL="+r.addr, patient)...)
	var admitted []string
	good := true
	for run := range runs {
		t := all.spend(ctx, "d", fmt.Sprintf("k=%d", run), hits)
		admitted = append(admitted, fmt.Sprint(len(t.left)))
		good = good && len(t.left) == limit && t.failed == 0
		e.note("run %d: %d OK, %d over, %d failed (%v)", run, len(t.left), t.over, t.failed, t.first)
	}
	e.measured(good, "OK %s of %d hits each, limit %d", strings.Join(admitted, ", "), hits, limit)
}

// costs returns the costs to try with a limit.
func costs(limit uint64) []uint64 {
	return []uint64{1, limit, limit + 1, 1 << 31, math.MaxUint32, 1 << 53, 1<<53 + 1, 1 << 63, math.MaxUint64}
}

// edge is a limit that is tried with all its costs.
type edge struct {
	algorithm, unit string
	limit           uint64
}

func (x edge) key() string { return fmt.Sprintf("%s-%s-%d", x.algorithm, x.unit, x.limit) }

// edgesOf returns limits for the algorithms, and rules with these limits.
func edgesOf(algorithms []string) (all []edge, rules string) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for _, unit := range []string{"second", "minute", "hour", "day", "week", "month", "year"} {
		for _, limit := range []uint64{1, 1000, math.MaxUint32} {
			for _, a := range algorithms {
				x := edge{a, unit, limit}
				all = append(all, x)
				fmt.Fprintf(&text, "  - key: %s\n    rate_limit:\n      unit: %s\n      requests_per_unit: %d\n      algorithm: %s #+\n", x.key(), unit, limit, a)
			}
		}
	}
	return all, text.String()
}

// edgy counts the results of edges.
type edgy struct{ tried, errors, wrong, panics int }

func edges(ctx context.Context, e *env) {
	algorithms := []string{"fixed_window", "sliding_window", "token_bucket", "leaky_bucket"}
	stores := []string{"memory", "redis"}
	if e.other {
		algorithms, stores = algorithms[:1], stores[1:]
	}
	all, rules := edgesOf(algorithms)
	r := e.redis(ctx)
	var n edgy
	for _, store := range stores {
		s := e.startServer(ctx, rules, "REDIS_URL="+r.addr, "BACKEND_TYPE="+store, patient)
		c := s.rls()
		for _, x := range all {
			n.try(ctx, e, c, x, store)
		}
		if !e.other {
			n.panics += int(s.metric(ctx, "ratelimitd_panics_total"))
		}
		n.panics += boolInt(s.Died())
	}
	e.measured(n.errors == 0 && n.wrong == 0 && n.panics == 0, "%d combinations: %d panics, %d gRPC errors, %d wrong verdicts", n.tried, n.panics, n.errors, n.wrong)
}

// try makes a call with each cost. Each call has its own counter.
func (n *edgy) try(ctx context.Context, e *env, c rlsv3.RateLimitServiceClient, x edge, store string) {
	for i, cost := range costs(x.limit) {
		n.tried++
		q := ask("d", fmt.Sprintf("%s=%s%d", x.key(), store, i))
		q.Descriptors[0].HitsAddend = wrapperspb.UInt64(cost)
		answer, err := c.ShouldRateLimit(ctx, q)
		passed := answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
		switch what := fmt.Sprintf("%d hits of %d per %s, %s in %s", cost, x.limit, x.unit, x.algorithm, store); {
		case err != nil:
			n.errors++
			e.note("%s: %v", what, err)
		case passed != (cost <= x.limit):
			n.wrong++
			e.note("%s: %v", what, answer)
		}
	}
}
