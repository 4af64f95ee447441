package main

import (
	"context"
	"time"
)

// far tests a Redis with a latency of 2 to 8 ms, at a load that leaves server and Redis mostly idle. No call is shed before or
// after a surge.
func (e *env) far(ctx context.Context) {
	const (
		rate   = 5000
		asked  = 0.97
		length = 3 * time.Second
	)
	r := e.redis(ctx)
	defer r.Kill()
	w := e.wire(ctx, r.addr)
	w.poison("latency", map[string]any{"latency": 5, "jitter": 3})
	s := e.startServer(ctx, calmRules, "REDIS_URL="+w.addr)
	defer s.Kill()
	l := load{addr: s.GRPC, requests: wide("busy", 1), rate: rate, timeout: envoyTimeout}
	decided := func(when string) {
		all := l.run(ctx, length).between(time.Second, length)
		share := all.share(all.inTime(okay))
		e.note("Redis 2 to 8 ms away, %s a surge: %s", when, all)
		e.measured(share >= asked, "Redis 2 to 8 ms away, %d a second %s a surge: %.1f %% decided in time, p99 %s", rate, when, 100*share, ms(all.p(0.99)))
	}
	decided("before")
	surge := l
	surge.rate = 10 * rate
	e.note("the surge: %s", surge.run(ctx, time.Second/2))
	decided("after")
}
