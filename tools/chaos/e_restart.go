package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// changes is E30: reloads of one server and restarts of another, at the same time.
func changes(ctx context.Context, e *env) error {
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	wg.Go(func() { errs[0] = reloads(ctx, e, r) })
	wg.Go(func() { errs[1] = restarts(ctx, e, r) })
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// version returns rules whose two limits tell which version they are of.
func version(n int) string {
	return fmt.Sprintf(`domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: %d}
  - key: other
    rate_limit: {unit: hour, requests_per_unit: %[1]d}
`, 1_000_000_000+n)
}

// versions is what calls say of the rules that decide them: how many calls there were, how many were decided by two
// versions, how many failed, and the highest version.
type versions struct{ asked, mixed, failures, highest atomic.Int64 }

// watch calls until ctx is done.
func (v *versions) watch(ctx context.Context, e *env, c rlsv3.RateLimitServiceClient) {
	for ctx.Err() == nil {
		a, err := c.ShouldRateLimit(ctx, ask("shop", "user=b", "other=b"))
		if ctx.Err() != nil {
			return
		}
		v.asked.Add(1)
		if err != nil {
			e.note("during reloads: %v", err)
			v.failures.Add(1)
			continue
		}
		first, second := a.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(), a.GetStatuses()[1].GetCurrentLimit().GetRequestsPerUnit()
		if first != second || first < 1_000_000_000 {
			v.mixed.Add(1)
			e.note("limits of %d and %d in one answer", first, second)
		}
		v.highest.Store(max(v.highest.Load(), int64(first)))
		_ = sleep(ctx, 2*time.Millisecond)
	}
}

// reloads changes the rules 200 times, and a third of them badly.
func reloads(ctx context.Context, e *env, r *store) error {
	const times = 200
	s, err := e.startServer(ctx, version(0), "REDIS_URL="+r.addr)
	if err != nil {
		return err
	}
	l := load{addr: s.grpc, requests: [][]byte{request("shop", "user=a", "other=a")}, rate: 500, timeout: time.Second}.start(ctx)
	run, end := context.WithCancel(ctx)
	defer end()
	c, err := s.rls()
	if err != nil {
		return err
	}
	var seen versions
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { seen.watch(run, e, c) })
	}
	bad, last, unseen := 0, 0, 0
	for i := 1; i <= times && err == nil; i++ {
		name, rules := "ratelimit_service_config_load_success", version(i)
		if e.rand.IntN(10) < 3 {
			name, rules = "ratelimit_service_config_load_error", version(1_000_000+i)+"  - key: [\n"
			bad++
		} else {
			last = i
		}
		before := s.metric(ctx, name)
		err = s.serve("rules.yaml", rules)
		if _, ok := poll(ctx, 2*time.Second, func() bool {
			if e.other { // by what it decides; of rules that are bad there is nothing to see
				return seen.highest.Load() >= int64(1_000_000_000+last)
			}
			return s.metric(ctx, name) > before
		}); !ok {
			unseen++
			e.note("reload %d was not noticed", i)
		}
	}
	if err == nil {
		err = sleep(ctx, 100*time.Millisecond)
	}
	end()
	wg.Wait()
	all := l.stop()
	if err != nil {
		return err
	}
	e.note("reloads: %s", all)
	failed := len(all) - len(all.of(okay)) + int(seen.failures.Load())
	e.measured(failed == 0, "%d reloads, %d bad: %d of %d calls failed", times, bad, failed, len(all)+int(seen.asked.Load()))
	right := seen.mixed.Load() == 0 && seen.highest.Load() == int64(1_000_000_000+last) && unseen == 0
	e.measured(right, "%d of %d decisions from a mixed or wrong config, %d reloads not noticed", seen.mixed.Load(), seen.asked.Load(), unseen)
	return nil
}

// restarts replaces a server 20 times, as an orchestrator does: the new one is ready before new connections are led to it,
// and the old one is told to end then.
func restarts(ctx context.Context, e *env, r *store) error {
	const times = 20
	start := func() (*server, error) {
		return e.startServer(ctx, endless, "REDIS_URL="+r.addr, "DRAIN_DELAY=200ms")
	}
	s, err := start()
	if err != nil {
		return err
	}
	door, err := e.wire(ctx, s.grpc) // a proxy that leads to the server in service
	if err != nil {
		return err
	}
	l := load{addr: door.addr, requests: values("user", 50), rate: 500, timeout: time.Second}.start(ctx)
	var slowest time.Duration
	for range times {
		if err != nil {
			break
		}
		var next *server
		if next, err = start(); err != nil {
			break
		}
		door.lead(next.grpc)
		var took time.Duration
		took, err = s.Stop()
		slowest = max(slowest, took)
		e.note("ended after %s", ms(took))
		s = next
	}
	all := l.stop()
	if err != nil {
		return err
	}
	e.note("restarts: %s", all)
	bad := len(all) - len(all.of(okay))
	e.measured(bad == 0, "%d restarts: %d of %d calls failed", times, bad, len(all))
	e.measured(slowest <= 15*time.Second, "shutdown in %s", ms(slowest))
	return nil
}
