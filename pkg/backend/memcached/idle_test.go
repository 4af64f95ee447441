package memcached

import (
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
)

// TestIdleConnections: of the connections that have been idle for long, MaxIdleConns are kept.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, MaxIdleConns: 3, OpTimeout: slow}, true)
	v := b.fleet.Load().servers[0]
	open := func() int {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.conns)
	}
	testkit.Eventually(t, "more than 3 connections", func() bool {
		var crowd sync.WaitGroup
		for range 100 {
			crowd.Go(func() { one(b, "a") })
		}
		crowd.Wait()
		return open() > 3
	})
	v.mu.Lock()
	for c := range v.conns {
		c.used = c.used.Add(-2*idleAfter - slow)
	}
	v.mu.Unlock()
	testkit.Eventually(t, "3 connections", func() bool {
		v.well()
		return open() == 3
	})
	for range 10 {
		v.well()
		if n := open(); n != 3 {
			t.Fatalf("%d connections are kept, want 3", n)
		}
	}
	if op := one(b, "a"); op.Err != nil {
		t.Errorf("over one that was kept: %v", op.Err)
	}
}
