package main

import (
	"context"
	"fmt"
	"time"
)

// redisFaults returns the checks of group B.
func redisFaults() []check {
	return []check{
		{"B9", "start without Redis, then with it", "ports ≤ 1 s; answers by policy p99 ≤ 5 ms; exact ≤ 1 s after Redis is up", true, startWithoutRedis},
	}
}

// policies are the values of on_failure, each with a domain of its own.
func policies() []string { return []string{"error", "allow", "deny", "local"} }

// byPolicy returns rules with a domain for each policy, whose key k has a limit of n per hour.
func byPolicy(n int) string {
	return fmt.Sprintf(`domain: shop
descriptors:
  - key: none
    rate_limit: {unit: hour, requests_per_unit: %d}
  - key: deny
    rate_limit:
      unit: hour
      requests_per_unit: %[1]d
      on_failure: deny #+
  - key: allow
    rate_limit:
      unit: hour
      requests_per_unit: %[1]d
      on_failure: allow #+
  - key: local
    rate_limit:
      unit: hour
      requests_per_unit: %[1]d
      on_failure: local #+
  - key: error
    rate_limit:
      unit: hour
      requests_per_unit: %[1]d
      on_failure: error #+
`, n)
}

func startWithoutRedis(ctx context.Context, e *env) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	s, err := e.server(ctx, byPolicy(1_000_000), "REDIS_URL=127.0.0.1:"+port)
	if err != nil {
		return err
	}
	if err := s.launch(); err != nil {
		return err
	}
	open, ok := poll(ctx, 3*time.Second, func() bool { return listens(s.grpc)(ctx) == nil && listens(s.http)(ctx) == nil })
	e.measured(ok && open <= time.Second, "ports after %s", ms(open))
	if !ok {
		return nil
	}
	l := load{addr: s.grpc, requests: [][]byte{request("shop", "deny=a"), request("shop", "allow=a"), request("shop", "local=a")}, rate: 1000, timeout: envoyTimeout}
	all := l.run(ctx, 2*time.Second)
	e.note("%s", all)
	r, err := e.redisAt(port)
	if err != nil {
		return err
	}
	_ = r
	e.measured(all.p(0.99) <= 5*time.Millisecond, "policy p99 %s", ms(all.p(0.99)))
	return nil
}
