package main

import (
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// past returns a campaign of games that once found a defect.
func past(lasts time.Duration) *campaign {
	c := &campaign{lasts: max(lasts, 8*time.Second), leases: true, cool: true}
	per := func(a proof.Algorithm, hits, burst int64, unit string) *rule {
		l := limit{Limit: proof.Limit{Algorithm: a, Hits: hits, Burst: burst}, unit: unit}
		if a == proof.TokenBucket {
			l.Initial = burst
		}
		return &rule{limits: []limit{l}}
	}
	looks := mix{over: 60, look: 20, peek: 10, explain: 10}
	slow := []override{{20, "minute"}}
	bucket := per(proof.FixedWindow, 10_000, 0, "hour")
	c.games = []*game{
		{title: "a slow override beside a fast bucket", rules: []*rule{per(proof.TokenBucket, 100, 100, "second")}, overrides: slow, mix: looks},
		{title: "a slow override beside a fast queue", rules: []*rule{per(proof.LeakyBucket, 100, 100, "second")}, overrides: slow, mix: looks},
		{title: "a slow override beside a fast log", rules: []*rule{per(proof.SlidingLog, 100, 0, "second")}, overrides: slow, mix: mix{over: 100, take: 2}},
		{title: "a long override beside short slots", rules: []*rule{per(proof.Concurrency, 5, 0, "second")}, overrides: []override{{5, "minute"}}, mix: mix{over: 50, take: 50}},
		{title: "peeks at an override's bucket", rules: []*rule{per(proof.TokenBucket, 20, 20, "second")}, overrides: []override{{20, "hour"}}, mix: mix{over: 60, peek: 40}},
		{
			title: "a rollout that raises the rate", serve: [replicas]int{0, 1, 0}, mix: mix{take: 100},
			rules: []*rule{per(proof.TokenBucket, 10, 10, "second"), per(proof.TokenBucket, 40, 10, "second")},
		},
		{
			title: "a rollout that raises the burst", serve: [replicas]int{0, 1, 0}, mix: mix{take: 100},
			rules: []*rule{per(proof.TokenBucket, 10, 10, "second"), per(proof.TokenBucket, 10, 100, "second")},
		},
		{title: "costs too large to lease", rules: []*rule{bucket}, mix: mix{take: 100}, huge: 10_001, hugeOdds: 30, clients: 6, pause: 4 * time.Millisecond},
		{title: "costs that are now and then too large to lease", rules: []*rule{per(proof.FixedWindow, 20_000, 0, "day")}, mix: mix{take: 100}, most: 50, clients: 4, pause: 4 * time.Millisecond},
	}
	for i, g := range c.games {
		g.domain = "past" + string(rune('a'+i))
		g.most, g.clients = max(g.most, 1), max(g.clients, 3)
		if g.pause == 0 {
			g.pause = 10 * time.Millisecond
		}
		for k, r := range g.rules {
			r.name = "s" + string(rune('0'+k))
			for n := range r.limits {
				r.limits[n].CountRefused = false // so that spent hits equal admitted hits
			}
		}
	}
	c.settle()
	return c
}
