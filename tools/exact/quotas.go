package main

import (
	"context"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rlqs/rlqstest"
)

// quotaLimit is the limit of the scene about RLQS, whose window does not end while the scene is played.
const quotaLimit = 3000

// Of the clients that decide by themselves. Together with the calls they ask for more than the limit has.
const (
	quotaDemand = 60 // requests a second, of each
	quotaFor    = 20 * time.Second
)

// withQuotas: clients that decide by themselves, one at each replica, and calls take from one counter. Together they get no more than the
// limit.
func withQuotas(g *stage) {
	ctx, cancel := context.WithTimeout(g.ctx, quotaFor)
	defer cancel()
	var clients []*rlqstest.Client
	var all sync.WaitGroup
	for _, r := range g.on {
		c := rlqstest.New(g.domain, "k", "v")
		clients = append(clients, c)
		all.Go(func() { c.Run(ctx, quotaDemand, r.conn) })
	}
	calls, decided := 0, uint64(0)
	for ctx.Err() == nil {
		if g.ask(take(1)).ok {
			calls++
		}
		time.Sleep(10 * time.Millisecond)
	}
	all.Wait()
	for _, c := range clients {
		decided += c.Admitted()
	}
	if sum := uint64(calls) + decided; sum > quotaLimit || calls == 0 || decided == 0 {
		g.finds("calls got %d and clients that decide by themselves %d of %d", calls, decided, quotaLimit)
	}
}
