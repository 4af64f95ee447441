package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Three servers on one Redis, with leases forced on.

const (
	leaseLimit  = 1000
	leaseSize   = 50
	leaseWindow = 4 * time.Second // of the rule turn
	leaseRuns   = 10
	leaseRules  = `
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: 1000, lease: 50}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket, lease: 50}
  - key: turn
    rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 1000, lease: 50}
`
)

// near returns the sum, over all servers, of a series of the near cache.
func near(servers []*daemon, series string) (sum float64) {
	for _, d := range servers {
		sum += d.metric("ratelimitd_near_cache_" + series + "_total")
	}
	return sum
}

// lost returns how many operations of all servers had no answer in time. One that leases hits waits for a second, whatever
// REDIS_OP_TIMEOUT says; if its answer comes later, no one has these hits.
func lost(servers []*daemon) (sum float64) {
	for _, d := range servers {
		sum += d.metric(`ratelimitd_backend_errors_total{class="timeout"}`)
	}
	return sum
}

func startLessors(t *testing.T, db *redistest.Server, n int) []*daemon {
	t.Helper()
	all := make([]*daemon, n)
	for i := range all {
		all[i] = startDaemon(t, db, leaseRules, "REDIS_OP_TIMEOUT=10s")
	}
	for _, d := range all {
		d.ready()
	}
	return all
}

// TestLeaseLadder: of ladderCalls calls, or a few more, exactly 1,000 are admitted, and each is told a different
// remaining number, unless a server has given hits back because it was not asked for a while, or lost some because Redis
// stood still.
func TestLeaseLadder(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	servers := startLessors(t, db, 3)
	var clients []rlsv3.RateLimitServiceClient
	for _, d := range servers {
		clients = append(clients, d.client())
	}
	for _, algorithm := range []string{"fixed_window", "token_bucket"} {
		t.Run(algorithm, func(t *testing.T) {
			spent, before, late := near(servers, "spent"), near(servers, "returned"), lost(servers)
			back := func() float64 { return near(servers, "returned") - before }
			remaining := rush(t, clients, request(algorithm, t.Name()), 32, ladderCalls)
			least := func() int { // rejected hits count in a fixed window, also in place of those that went back
				if algorithm == "fixed_window" {
					return leaseLimit - int(back())
				}
				return leaseLimit
			}
			testkit.Poll(patience, func() bool { // what a server holds that was held up, or what it refunds, is for later calls
				if len(remaining) < leaseLimit {
					remaining = append(remaining, rush(t, clients, request(algorithm, t.Name()), len(clients), 10*len(clients))...)
				}
				return len(remaining) >= least()
			})
			slices.Sort(remaining)
			twice := len(remaining) - len(slices.Compact(slices.Clone(remaining)))
			testkit.Poll(patience, func() bool { return float64(twice) <= back() }) // a hit may be refunded and taken again before that is counted
			spent = near(servers, "spent") - spent
			late = lost(servers) - late
			t.Logf("leases served %v of %d; %v hits went back; the answers to %v operations came too late", spent, len(remaining), back(), late)
			if n := len(remaining); n > leaseLimit || float64(n) < float64(least())-late*leaseSize {
				t.Errorf("%d were admitted, want %d, and no less than %d", n, leaseLimit, least())
			}
			if float64(twice) > back() {
				t.Errorf("%d were told what another one was told, want at most %v", twice, back())
			}
			if spent < leaseLimit/10 {
				t.Errorf("leases served %v of %d", spent, len(remaining))
			}
		})
	}
}

// contest is clients who take from one counter, through servers one of which is a victim.
type contest struct {
	t        *testing.T
	request  *rlsv3.RateLimitRequest
	wg       sync.WaitGroup
	ok       atomic.Int64
	failures atomic.Int64  // of the victim
	ended    chan struct{} // closed when clients are to stop; nil: they stop when the counter is empty

	mu    sync.Mutex
	turns map[int64]int // admitted by window, of those that began and ended within it
}

// enough is how many rejections in a row end a client.
const enough = 200

// client takes until the counter is empty or the test ends it. A victim's client continues after failures, and does not
// wait long if the victim is going to hang.
func (r *contest) client(c rlsv3.RateLimitServiceClient, victim bool) {
	r.wg.Go(func() {
		for rejected := 0; r.ended != nil || rejected < enough; {
			select {
			case <-r.ended:
				return
			default:
			}
			patience := 20 * time.Second
			if victim && r.ended != nil {
				patience = 500 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(r.t.Context(), patience)
			begin := time.Now()
			answer, err := c.ShouldRateLimit(ctx, r.request)
			end := time.Now()
			cancel()
			switch {
			case err != nil && victim:
				r.failures.Add(1)
				rejected++
			case err != nil:
				r.t.Error(err)
				return
			case answer.GetOverallCode() == rlsv3.RateLimitResponse_OK:
				r.admitted(begin, end)
				rejected = 0
			default:
				rejected++
			}
		}
	})
}

// rest asks again, until at least the given number is admitted, because hits may be refunded when no one asks any
// more.
func (r *contest) rest(clients []rlsv3.RateLimitServiceClient, least int64) {
	testkit.Poll(patience, func() bool {
		for _, c := range clients {
			if r.ok.Load() >= least {
				break
			}
			answer, err := c.ShouldRateLimit(r.t.Context(), r.request)
			if err != nil {
				r.t.Error(err)
			} else if answer.GetOverallCode() == rlsv3.RateLimitResponse_OK {
				r.ok.Add(1)
			}
		}
		return r.ok.Load() >= least
	})
}

func (r *contest) admitted(begin, end time.Time) {
	r.ok.Add(1)
	turn := begin.UnixMicro() / leaseWindow.Microseconds()
	if turn == end.UnixMicro()/leaseWindow.Microseconds() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.turns[turn]++
	}
}

// startContest starts clients of a victim and of the survivors.
func startContest(
	t *testing.T, survivors []rlsv3.RateLimitServiceClient, victim *daemon, what *rlsv3.RateLimitRequest, ended chan struct{},
) *contest {
	t.Helper()
	r := &contest{t: t, request: what, turns: map[int64]int{}, ended: ended}
	v := victim.client()
	for range 2 {
		r.client(v, true)
		for _, c := range survivors {
			r.client(c, false)
		}
	}
	return r
}

// eachRun makes the given number of runs at the same time, each with its own counter and victim.
func eachRun(t *testing.T, db *redistest.Server, show func(t *testing.T, survivors []rlsv3.RateLimitServiceClient, n int)) {
	t.Helper()
	survivors := startLessors(t, db, 2)
	clients := []rlsv3.RateLimitServiceClient{survivors[0].client(), survivors[1].client()}
	t.Run("runs", func(t *testing.T) {
		for n := range leaseRuns {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				show(t, clients, n)
			})
		}
	})
	if near(survivors, "spent") == 0 {
		t.Error("leases served nothing")
	}
}

// TestLeaseKilled kills one of three servers while it holds leases: no more than the limit is admitted, and no more is
// left unused than what that server held and had asked for, plus its clients' last calls.
func TestLeaseKilled(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	eachRun(t, db, func(t *testing.T, survivors []rlsv3.RateLimitServiceClient, n int) {
		t.Helper()
		victim := startLessors(t, db, 1)[0]
		r := startContest(t, survivors, victim, request("fixed_window", t.Name()), nil)
		at := int64(50 + 80*n)
		testkit.Eventually(t, fmt.Sprint(at, " are admitted"), func() bool { return r.ok.Load() >= at })
		victim.kill()
		r.wg.Wait()
		const most = 2*leaseSize + 2
		r.rest(survivors, leaseLimit-most)
		ok := r.ok.Load()
		t.Logf("killed after %d or a little later; of %d, %d were admitted", at, leaseLimit, ok)
		if ok > leaseLimit || ok < leaseLimit-most {
			t.Errorf("%d were admitted, want %d, or up to %d less", ok, leaseLimit, most)
		}
	})
}

// TestLeaseStopped suspends servers in the middle of a window, each while it holds leases, and resumes them in the next
// window, whose limit others have used up: they spend nothing of what they leased before.
func TestLeaseStopped(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	survivors, victims := startLessors(t, db, 2), startLessors(t, db, leaseRuns)
	clients := []rlsv3.RateLimitServiceClient{survivors[0].client(), survivors[1].client()}
	var contests []*contest
	ended := make(chan struct{})
	for n, victim := range victims {
		contests = append(contests, startContest(t, clients, victim, request("turn", fmt.Sprint(n)), ended))
	}
	for n, r := range contests {
		testkit.Eventually(t, fmt.Sprint(100+20*n, " are admitted"), func() bool { return r.ok.Load() >= int64(100+20*n) })
		victims[n].signal(syscall.SIGSTOP)
	}
	time.Sleep(time.Until(time.Now().Truncate(leaseWindow).Add(leaseWindow + leaseWindow*3/4)))
	for _, victim := range victims {
		victim.signal(syscall.SIGCONT)
	}
	time.Sleep(leaseWindow / 2)
	close(ended)
	for n, r := range contests {
		r.wg.Wait()
		t.Logf("admitted by window: %v", r.turns)
		for turn, ok := range r.turns {
			if ok > leaseLimit {
				t.Errorf("run %d: in window %d %d were admitted, want at most %d", n, turn, ok, leaseLimit)
			}
		}
	}
	if unspent := near(victims, "unspent") + near(victims, "returned"); unspent == 0 {
		t.Error("no server held a lease when it was stopped")
	}
}

// TestLeaseRepliesCut cuts the connections of one of three servers to Redis in the middle of replies: no more than the
// limit is admitted, and no more is left unused than one lease for each call that failed.
func TestLeaseRepliesCut(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	eachRun(t, db, func(t *testing.T, survivors []rlsv3.RateLimitServiceClient, _ int) {
		t.Helper()
		victim := startProcess(t, leaseRules, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+cutting(t, db.Addr()), "REDIS_OP_TIMEOUT=10s")
		victim.ready()
		r := startContest(t, survivors, victim, request("token_bucket", t.Name()), nil)
		r.wg.Wait()
		failed := 0.0
		for _, class := range []string{"timeout", "refused", "reset", "other"} {
			failed += victim.metric(`ratelimitd_backend_errors_total{class="` + class + `"}`)
		}
		ok := r.ok.Load()
		t.Logf("of %d, %d were admitted; %v operations of the victim failed", leaseLimit, ok, failed)
		if ok > leaseLimit || float64(ok) < leaseLimit-failed*leaseSize {
			t.Errorf("%d were admitted, want %d, or up to %v less", ok, leaseLimit, failed*leaseSize)
		}
	})
}

// cutting returns the address of a proxy to addr that cuts each connection in the middle of one of the first replies, soon
// after the few that it takes to connect.
func cutting(t *testing.T, addr string) string {
	t.Helper()
	p := testkit.NewProxy(t, addr)
	p.Replies(func(to io.Writer, from io.Reader) {
		buf := make([]byte, 64<<10)
		for last := 8 + rand.IntN(12); ; last-- {
			n, err := from.Read(buf)
			if err == nil && last == 0 {
				n /= 2
			}
			if _, writeErr := to.Write(buf[:n]); err != nil || writeErr != nil || last == 0 {
				return
			}
		}
	})
	return p.Addr()
}
