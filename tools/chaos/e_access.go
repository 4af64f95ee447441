package main

import "context"

// access returns the checks of group E.
func access() []check {
	return []check{
		{"E28", "TLS: accepted clients; certificate, key and CA change under load", "12 of 12; rotation 0 dropped calls", false, tlsMatrix},
		{"E29", "access from other machines; 30 planted secrets", "pprof and admin: only on loopback; with HOST=DEBUG_HOST=127.0.0.1 only the gRPC port; 0 secrets shown", true, exposure},
		{"E30", "200 reloads, 30 % of them bad, and 20 graceful restarts, under load", "0 failed calls, 0 decisions from a mixed config, shutdown ≤ 15 s", true, changes},
	}
}

func tlsMatrix(ctx context.Context, e *env) error {
	c, err := e.corpus(ctx, "./cmd/ratelimitd", "^TestTLS")
	e.measured(err == nil && c.failed == 0 && c.passed >= 12, "%d cases as listed, the rotation among them, %d not", c.passed, c.failed)
	return nil
}
