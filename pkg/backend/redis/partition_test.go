package redis

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestF20_ReplicaPartitioned: a master that has lost its replica, and is configured to require one for writes, counts as down until the
// replica returns.
func TestF20_ReplicaPartitioned(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "min-replicas-to-write 1", "min-replicas-max-lag 2", "repl-ping-replica-period 1")
	replica := redistest.Replica(t, master)
	b := run(t, Config{URL: master.Addr()}, true)
	broken(t, b, ClassClusterDown, replica.Stop, replica.Cont)
}

// TestF20_Split splits the network between the master with one server, and its replica, the sentinels and another server. Two masters
// admit at most twice the limit, and the old one stops by itself. Proxies simulate the split, because a real one requires privileges.
func TestF20_Split(t *testing.T) {
	t.Parallel()
	const limit = 10_000
	master := redistest.Start(t, "min-replicas-to-write 1", "min-replicas-max-lag 2", "repl-ping-replica-period 1")
	link := testkit.NewProxy(t, master.Addr())
	replica := redistest.Start(t, "replicaof "+strings.Replace(link.Addr(), ":", " ", 1))
	testkit.Eventually(t, "a replica in step", replica.InStep)
	all := redistest.SentinelsAt(t, link.Addr(), "mine", 3)
	redistest.AwaitSentinels(all, "mine", 1)
	beside := run(t, Config{URL: master.Addr()}, true)
	beyond := run(t, Config{Type: Sentinel, URL: "mine," + all[0].Addr() + "," + all[1].Addr() + "," + all[2].Addr()}, true)

	var admitted atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	last := map[*Backend]time.Time{} // time of the last exact decision
	for _, b := range []*Backend{beside, beyond} {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(t.Context(), usual)
				ops := []backend.Op{{Key: keyOf(1), Limits: lasting(limit), Take: engine.Take{Cost: 10, Count: 1}}}
				b.Apply(ctx, ops)
				cancel()
				if ops[0].Err == nil {
					admitted.Add(10 * ops[0].Decision.Admitted)
					mu.Lock()
					last[b] = time.Now()
					mu.Unlock()
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond)
	split := time.Now()
	link.Silent.Store(true)
	redistest.Down(all, "mine", time.Second/2)
	failover(t, replica.IsMaster)
	t.Logf("another master after %v", time.Since(split))
	figure(t, "a decision there", testkit.Eventually(t, "a decision", func() bool { return oneIn(beyond, 2, usual).Err == nil }), time.Second)
	// Hits that the old master counted and did not replicate are lost. It stops after a lag of two seconds.
	testkit.Eventually(t, "the old master to stop", func() bool { return class(oneIn(beside, 3, usual)) == ClassClusterDown })
	time.Sleep(time.Second)
	testkit.Eventually(t, "a decision of the server that sentinels lead", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return last[beyond].After(last[beside])
	})
	close(stop)
	wg.Wait()
	figure(t, "the old master went on", last[beside].Sub(split), 4*time.Second)
	n := admitted.Load()
	t.Logf("%d hits were admitted of %d, by two masters", n, limit)
	if n > 2*limit {
		t.Errorf("%d hits were admitted, want at most twice %d", n, limit)
	}
}
