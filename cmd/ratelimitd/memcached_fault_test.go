package main

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
)

// TestMemcachedFails is TestRedisFails with memcached.
func TestMemcachedFails(t *testing.T) {
	for _, fault := range []struct {
		name         string
		begin, after func(*memcachedtest.Server)
	}{
		{"killed", (*memcachedtest.Server).Kill, (*memcachedtest.Server).Restart},
		{"stopped", (*memcachedtest.Server).Stop, (*memcachedtest.Server).Cont},
	} {
		t.Run(fault.name, func(t *testing.T) {
			t.Parallel()
			db := memcachedtest.Start(t)
			d := startProcess(t, localRules, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+db.Addr(), "DEFAULT_ON_FAILURE=local")
			playFault(t, d, fault.name, func() { fault.begin(db) }, func() { fault.after(db) })
		})
	}
}
