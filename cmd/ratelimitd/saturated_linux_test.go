package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sys/unix"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// TestPoliciesHoldWithoutCPU: while other clients keep Redis busy, and it takes the processor that it shares with the server,
// on_failure decides before callers give up, in 99 of 100 calls. Each round has a server that knows nothing yet. A round in
// which more than one in a hundred requests that need no Redis are late, too, proves nothing but that others take the
// processors, so others follow.
func TestPoliciesHoldWithoutCPU(t *testing.T) {
	testkit.NotShort(t)
	const missing = 0.01
	for _, policy := range []string{"allow", "deny", "local"} {
		t.Run(policy, func(t *testing.T) {
			undisturbed(t, func(t *testing.T) round {
				t.Helper()
				unanswered, noise, others := whileRedisIsBusy(t, policy)
				r := round{seen: fmt.Sprintf("%.2f %% of the requests were not answered, and %.2f %% of those that need no Redis", 100*unanswered, 100*noise)}
				r.held = unanswered <= missing || noise <= missing && unanswered <= missing+2*noise
				r.disturbed = noise > missing && others > tooMuchForOthers
				return r
			})
		})
	}
}

// tooMuchForOthers is the share of all processors that may work for other processes while a test looks at times.
const tooMuchForOthers = 0.1

// round is what came of measuring once.
type round struct {
	held      bool   // what was to be shown
	disturbed bool   // it was not, but others took the processors: that proves nothing
	seen      string // in words
}

// undisturbed plays rounds until what is to be shown has held in one. If it has held in none, the test fails; it is skipped if
// others have taken the processors in each.
func undisturbed(t *testing.T, play func(t *testing.T) round) {
	t.Helper()
	var failed string
	for n := range 4 {
		var r round
		t.Run(strconv.Itoa(n), func(t *testing.T) { r = play(t) })
		switch {
		case r.held || t.Failed():
			return
		case r.disturbed:
			t.Logf("DISTURBED, so this round says nothing: %s", r.seen)
		default:
			failed = r.seen
		}
	}
	if failed != "" {
		t.Error(failed)
		return
	}
	testkit.Disturbed(t)
}

// whileRedisIsBusy returns the fraction of requests without an answer from a server that shares its processor with Redis, that
// of those that do not need Redis, and how much of all processors worked for others meanwhile.
func whileRedisIsBusy(t *testing.T, policy string) (unanswered, noise, others float64) {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules, "DEFAULT_ON_FAILURE="+policy)
	d.ready()
	shareProcessor(t, d.Process, db.Process)
	saturate(t, db, 4, 3*time.Millisecond)
	forOthers := proc.ForOthers(d.Process.Process, db.Process.Process)
	load := startLoad(t, []rlsv3.RateLimitServiceClient{d.client(), d.client(), d.client(), d.client()})
	time.Sleep(3 * time.Second)
	load.stop()
	others = forOthers()
	if d.metric(`ratelimitd_backend_fallback_total{policy="`+policy+`",rule="shop.user"}`) < loadRate/10 {
		t.Fatal("Redis is not so busy that on_failure has to decide")
	}
	unanswered, noise = load.report(t, "while Redis is busy")
	t.Logf("%.0f %% of all processors worked for others", 100*others)
	return unanswered, noise, others
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
