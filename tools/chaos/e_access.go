package main

// access returns the checks of group E.
func access() []check {
	return []check{
		{
			"E28", "TLS: accepted clients; certificate, key and CA change under load", "12 of 12; rotation 0 dropped calls", false,
			asListed(12, "^TestTLS", "./cmd/ratelimitd"),
		},
		{
			"E29", "access from other machines; 30 planted secrets",
			"pprof and admin: only on loopback; with HOST=DEBUG_HOST=127.0.0.1 only the gRPC port; 0 secrets shown", true, exposure,
		},
		{
			"E30", "good and bad reloads in turn, and rolling restarts, under load",
			"0 failed calls, each counted once, 0 decisions from a mixed or bad config, shutdown ≤ 15 s", false,
			asListed(2, "^TestF2[34]_", "./cmd/ratelimitd"),
		},
	}
}
