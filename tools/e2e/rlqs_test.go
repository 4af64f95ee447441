package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// quotas are about Envoys that decide by themselves.
func quotas() []example {
	return []example{
		{
			name: "examples/envoy-rlqs", effort: most, play: divided, since: sinceQuotas,
			want: "100/s with a burst of 200: never more than that and what passes before the first assignment; at least 90 of 100/s from the first report on; " +
				"RLS callers use the same counter",
		},
		{
			name: "examples/envoy-rlqs, two Envoys and two replicas", effort: whole, play: dividedTwice, since: sinceQuotas,
			want: "100/s together, and 40 to 60 of them by each Envoy",
		},
		{
			name: "examples/envoy-rlqs, the simulations' Envoy", effort: whole, play: mirrored, since: sinceQuotas,
			want: "it lets as many requests pass as Envoy does, within 2 % in all, and within 2 % or 10 requests under each assignment",
		},
		{
			name: "examples/envoy-rlqs, three Envoys and three replicas, one of each dies", effort: whole, play: moving, since: sinceQuotas,
			want: "traffic that moves between them for a minute: within the bound, at least 70 of 100/s, at most a message a second and Envoy",
		},
		{
			name: "examples/envoy-rlqs, how long a request takes", effort: whole, play: quotaLatency, since: sinceQuotas,
			want: "measured one after the other, without a limit, with RLQS and with RLS",
		},
		{name: "examples/envoy-rlqs, a block", want: "429 within 2 s for everyone, and requests pass again after lift", play: blocked, since: sinceQuotas},
	}
}

const sinceQuotas = 40 // where the filter was measured

// serveQuotas starts the server with the rules of the example.
func (w *world) serveQuotas(env ...string) *service {
	w.Helper()
	rules, err := os.ReadFile(filepath.Join("..", "..", "examples", "envoy-rlqs", "rules", "edge.yaml"))
	testkit.Check(w, err)
	return w.serve(string(rules), env...)
}

// shop is the descriptor that the example's bucket stands for.
func shop() *commonv3.RateLimitDescriptor {
	return &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "service", Value: "shop"}}}
}

// divided sends twice the limit.
func divided(w *world) {
	const limit, burst, rate = 100, 200, 200
	up := w.upstream(hello)
	s := w.serveQuotas("BACKEND_TYPE=memory")
	p := w.proxy(setup{example: "envoy-rlqs"}, up, s)
	begin := time.Now()
	stop := w.flow(p, rate, "ann")
	seen := func() (int, time.Time) { return up.all(), time.Now() }
	wait := func(d time.Duration) {
		testkit.Eventually(w, "time passes", func() bool { return time.Since(begin) >= d })
	}
	wait(6 * time.Second)
	early, since := seen()
	wait(21 * time.Second)
	n, at := seen()
	used := float64(n-early) / at.Sub(since).Seconds()
	// Before the first assignment, and the first full bucket of a second at most.
	most := burst + limit*at.Sub(begin).Seconds() + rate*0.5 + limit
	w.got(float64(n) <= most && used >= 0.9*limit, "%d reach the upstream in %.1f s, at most %.0f by the bound; %.1f/s from 6 s on", n, at.Sub(begin).Seconds(), most, used)

	var passed atomic.Int64
	asks := rlsv3.NewRateLimitServiceClient(s.conn)
	quit := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Second / 50)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				a, err := asks.ShouldRateLimit(w.Context(), &rlsv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{shop()}})
				if err == nil && a.GetOverallCode() == rlsv3.RateLimitResponse_OK {
					passed.Add(1)
				}
			}
		}
	}()
	wait(27 * time.Second)
	n, since = seen()
	before := passed.Load()
	wait(42 * time.Second)
	m, at := seen()
	close(quit)
	<-ended
	byRLS := float64(passed.Load()-before) / at.Sub(since).Seconds()
	both := float64(m-n)/at.Sub(since).Seconds() + byRLS
	w.got(both <= 1.1*limit && both >= 0.85*limit && byRLS > 0, "beside %.1f/s by RLS, %.1f/s together", byRLS, both)
	look := exec.CommandContext(w.Context(), w.program, "rlqs", "--addr", s.Addr())
	said, err := look.Output()
	testkit.Check(w, err)
	shown := regexp.MustCompile(`(?m)^edge service=shop: .*/s assigned of a limit of 100\.0/s, to 1 client, fast(.*\n)*  edge-1 +assigned +1 .*`).FindString(string(said))
	w.got(shown != "", "`ratelimitd rlqs` shows %q", strings.Join(strings.Fields(shown), " "))
	y := stop()
	w.got(y.odd == 0 && y.failed == 0, "%d callers get 200 and %d get 429", y.passed, y.rejected)
}

// blocked has an operator block what an Envoy decides by itself.
func blocked(w *world) {
	up := w.upstream(hello)
	socket := filepath.Join(w.TempDir(), "admin")
	s := w.serveQuotas("BACKEND_TYPE=memory", "ADMIN_SOCKET="+socket)
	p := w.proxy(setup{example: "envoy-rlqs"}, up, s)
	stop := w.flow(p, 20, "ann")
	is := func(status int) func() bool {
		return func() bool { return w.ask(p, "/", "ann").status == status }
	}
	testkit.Eventually(w, "requests pass", is(http.StatusOK))
	w.operate(socket, "block", "edge", "service=shop", "--for", "1h")
	begin := time.Now()
	testkit.Eventually(w, "requests are denied", is(http.StatusTooManyRequests))
	took := time.Since(begin)
	y := w.send(p, make([]string, 30)...)
	w.got(took < 2*time.Second && y.rejected == 30, "429 after %s; then %d of 30", took.Round(100*time.Millisecond), y.rejected)
	w.operate(socket, "lift", "edge", "service=shop")
	begin = time.Now()
	testkit.Eventually(w, "requests pass again", is(http.StatusOK))
	w.got(true, "200 again %s after lift", time.Since(begin).Round(100*time.Millisecond))
	stop()
}

// operate has an operator run a command at the server with that ADMIN_SOCKET.
func (w *world) operate(socket string, args ...string) {
	w.Helper()
	cmd := exec.CommandContext(w.Context(), w.program, args...)
	cmd.Env = append(os.Environ(), "ADMIN_SOCKET="+socket)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.Fatalf("%v: %v: %s", args, err, out)
	}
}

// dividedTwice has two Envoys with a replica each, which agree on their parts.
func dividedTwice(w *world) {
	const limit, burst, rate = 100, 200, 150
	_, redis := w.redis()
	up := w.upstream(hello)
	var stops []func() *tally
	begin := time.Now()
	for range 2 {
		p := w.proxy(setup{example: "envoy-rlqs"}, up, w.serveQuotas(redis))
		stops = append(stops, w.flow(p, rate, "ann"))
	}
	wait := func(d time.Duration) {
		testkit.Eventually(w, "time passes", func() bool { return time.Since(begin) >= d })
	}
	wait(15 * time.Second)
	early, since := up.all(), time.Now()
	wait(35 * time.Second)
	n, at := up.all(), time.Now()
	used := float64(n-early) / at.Sub(since).Seconds()
	most := burst + limit*at.Sub(begin).Seconds() + 2*(rate*0.5+limit)
	w.got(float64(n) <= most && used >= 0.75*limit && used <= 1.1*limit, "%d reach the upstream in %.1f s, at most %.0f by the bound; %.1f/s from 15 s on",
		n, at.Sub(begin).Seconds(), most, used)
	var passed [2]int
	for i, stop := range stops {
		y := stop()
		passed[i] = y.passed
		w.got(y.odd == 0 && y.failed == 0 && passed[i] > 0, "%d callers get 200", y.passed)
	}
	w.got(passed[0] < passed[1]*3/2 && passed[1] < passed[0]*3/2, "that is %d %% of them by one Envoy", 100*passed[0]/max(passed[0]+passed[1], 1))
}
