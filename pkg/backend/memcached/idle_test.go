package memcached

import (
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memcached/memcachedtest"
)

// TestIdleConnections: of the connections that have been idle for long, MaxIdleConns are kept.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, MaxIdleConns: 3, OpTimeout: slow}, true)
	v := b.fleet.Load().servers[0]
	quiet := func() (open int, ok bool) { // nothing is used, and nothing on its way
		v.mu.Lock()
		defer v.mu.Unlock()
		return v.open, v.open == len(v.idle) && v.dialing == 0
	}
	testkit.Eventually(t, "more than 3 connections", func() bool {
		var crowd sync.WaitGroup
		for range 100 {
			crowd.Go(func() { one(b, "a") })
		}
		crowd.Wait()
		open, ok := quiet()
		return ok && open > 3
	})
	v.mu.Lock()
	for _, l := range v.idle {
		l.used = l.used.Add(-2 * idleAfter)
	}
	v.mu.Unlock()
	testkit.Eventually(t, "3 connections", func() bool {
		v.poke()
		open, ok := quiet()
		return ok && open == 3
	})
	for range 10 {
		v.poke()
		time.Sleep(time.Millisecond)
		if open, _ := quiet(); open != 3 {
			t.Fatalf("%d connections are kept, want 3", open)
		}
	}
}
