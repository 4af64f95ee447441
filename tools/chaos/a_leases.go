package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

const (
	leaseLimit  = 5000
	leaseGrant  = leaseLimit / 100 // maximum size of a lease
	leaseRounds = 10               // per fault
	leaseTTL    = 2 * time.Second  // lifetime of a lease
)

// lessee is a server with its own proxy to Redis.
type lessee struct {
	*server

	wire *wire
	c    rlsv3.RateLimitServiceClient
}

// heist is a round of A7: clients of three servers exhaust one key while one server fails.
type heist struct {
	key string

	mu         sync.Mutex
	admitted   int
	unanswered int
}

// leases is A7: three servers, and concurrently models in virtual time.
func leases(ctx context.Context, e *env) {
	e.together(func() { leaseModels(ctx, e) }, func() { heists(ctx, e) })
}

func heists(ctx context.Context, e *env) {
	r := e.redis(ctx)
	var three []*lessee
	for range 3 {
		w := e.wire(ctx, r.addr)
		s := e.startServer(ctx, limited(leaseLimit, "year"), "REDIS_URL="+w.addr)
		three = append(three, &lessee{server: s, wire: w, c: s.rls()})
	}
	for _, fault := range []struct {
		name string
		do   func(context.Context, *lessee)
	}{{"kill -9", killed}, {"SIGSTOP", stopped}, {"lost reply", unheard}} {
		good, short, over := 0, 0, 0
		for round := range leaseRounds {
			h := &heist{key: fmt.Sprintf("k=%s%d", fault.name, round)}
			h.play(ctx, three, func() { fault.do(ctx, three[e.rand.IntN(len(three))]) })
			// A server holds at most two leases, and one more in flight.
			outstanding := len(three)*3*leaseGrant + h.unanswered
			left := leaseLimit - h.admitted
			e.note("%s, round %d: %d admitted of %d, %d calls without an answer", fault.name, round, h.admitted, leaseLimit, h.unanswered)
			short, over = max(short, left), max(over, -left)
			if left >= 0 && left <= outstanding {
				good++
			}
		}
		e.measured(good == leaseRounds, "%s: %d of %d, at most %d too many and %d too few of %d", fault.name, good, leaseRounds, over, short, leaseLimit)
	}
	spent := 0.0
	for _, l := range three {
		spent += max(l.metric(ctx, "ratelimitd_near_cache_spent_total"), 0)
	}
	e.measured(spent > leaseLimit, "%.0f hits came from leases", spent)
}

// play runs clients on all servers until they are rejected, and injects the fault after a third of the limit.
func (h *heist) play(ctx context.Context, three []*lessee, fault func()) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const each = 6
	var wg sync.WaitGroup
	for _, l := range three {
		for range each {
			wg.Go(func() { h.take(ctx, l) })
		}
	}
	_, _ = poll(ctx, patience, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.admitted > leaseLimit/3
	})
	fault()
	wg.Wait()
}

// take takes hits until several rejections in a row.
func (h *heist) take(ctx context.Context, l *lessee) {
	const enough = 5
	for rejected := 0; rejected < enough && ctx.Err() == nil; {
		once, cancel := context.WithTimeout(ctx, 2*leaseTTL)
		answer, err := l.c.ShouldRateLimit(once, ask("d", h.key))
		cancel()
		h.mu.Lock()
		switch {
		case err != nil:
			h.unanswered++
		case answer.GetOverallCode() == rlsv3.RateLimitResponse_OK:
			h.admitted++
			rejected = 0
		default:
			rejected++
		}
		h.mu.Unlock()
		if err != nil {
			_ = sleep(ctx, 20*time.Millisecond)
		}
	}
}

// killed kills and restarts a server.
func killed(ctx context.Context, l *lessee) {
	l.Kill()
	l.e.must(l.Start(ctx))
}

// stopped suspends a server until its leases have expired.
func stopped(ctx context.Context, l *lessee) {
	l.e.must(l.Pause())
	l.e.sleep(ctx, leaseTTL+200*time.Millisecond)
	l.e.must(l.Resume())
}

// unheard cuts a server's connections to Redis in the middle of replies.
func unheard(ctx context.Context, l *lessee) {
	l.wire.poison("limit_data", map[string]any{"bytes": l.e.rand.IntN(400)})
	l.e.sleep(ctx, 50*time.Millisecond)
	l.wire.cure(ctx, "limit_data")
}
