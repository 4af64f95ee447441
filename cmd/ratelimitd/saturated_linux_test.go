package main

import (
	"context"
	_ "embed"
	"errors"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sys/unix"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// TestPoliciesHoldWithoutCPU: while other clients keep Redis busy, and it takes the processor that it shares with the server,
// on_failure decides before callers give up, in 99 of 100 calls. Other load on the machine delays requests too, so the best
// of several rounds counts, each of a server that knows nothing yet.
func TestPoliciesHoldWithoutCPU(t *testing.T) {
	testkit.NotShort(t)
	const missing = 0.01 // beyond twice that of requests that need no Redis, see mayMiss
	for _, policy := range []string{"allow", "deny", "local"} {
		t.Run(policy, func(t *testing.T) {
			unanswered, noise := 1.0, 0.0
			for round := 0; round < 4 && unanswered > missing+2*noise; round++ {
				t.Run(strconv.Itoa(round), func(t *testing.T) { unanswered, noise = whileRedisIsBusy(t, policy) })
			}
			if unanswered > missing+2*noise {
				t.Errorf("%.2f %% of the requests were not answered, and %.2f %% of those that need no Redis", 100*unanswered, 100*noise)
			}
		})
	}
}

// whileRedisIsBusy returns the fraction of requests without an answer from a server that shares its processor with Redis, and
// of those that do not need Redis.
func whileRedisIsBusy(t *testing.T, policy string) (unanswered, noise float64) {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules, "DEFAULT_ON_FAILURE="+policy)
	d.ready()
	shareProcessor(t, d.Process, db.Process)
	saturate(t, db, 4, 3*time.Millisecond)
	load := startLoad(t, []rlsv3.RateLimitServiceClient{d.client(), d.client(), d.client(), d.client()})
	time.Sleep(5 * time.Second)
	load.stop()
	if d.metric(`ratelimitd_backend_fallback_total{policy="`+policy+`",rule="shop.user"}`) < loadRate/10 {
		t.Fatal("Redis is not so busy that on_failure has to decide")
	}
	return load.report(t, "while Redis is busy")
}

//go:embed testdata/busy.lua
var busy string

// saturate has other clients run a script on db again and again that takes so long each time, until the test ends.
func saturate(t *testing.T, db *redistest.Server, clients int, each time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for range clients {
		client := db.Client()
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := client.Eval(ctx, busy, nil, each.Microseconds()).Err(); err != nil && ctx.Err() == nil {
					t.Errorf("keeping Redis busy: %v", err)
					return
				}
			}
		})
	}
}

// shareProcessor has processes run on one processor, the same for all.
func shareProcessor(t *testing.T, all ...*testkit.Process) {
	t.Helper()
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if may.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	for _, p := range all {
		threads, err := os.ReadDir("/proc/" + strconv.Itoa(p.PID()) + "/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err == nil {
				err = unix.SchedSetaffinity(id, &one)
			}
			if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
				t.Fatal(err)
			}
		}
	}
}
