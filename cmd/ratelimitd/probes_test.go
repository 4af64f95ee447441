package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// scale is by how much time runs faster here than in a cluster: a minute's outage takes 6 s, and a probe that comes every
// 10 s comes every second. The server has no times of its own that are as long: it tries to connect every second, and a
// breaker that is open tries every quarter of one.
const scale = 10

// probe is one of a container in Kubernetes; without a path it always passes.
type probe struct {
	path      string
	period    time.Duration
	threshold int // failures in a row until it counts as failed
}

// probes are those of a container.
type probes struct{ startup, readiness, liveness probe }

// pods are the containers that are simulated. Istio's sample has no probes at all, so it restarts only a process that
// ends; the other examples have the same probes as Envoy Gateway, with other intervals.
func pods() map[string]probes {
	return map[string]probes{
		"Envoy Gateway": { // its Deployment of the rate-limit service
			startup:   probe{"/healthcheck", 10 * time.Second, 30},
			readiness: probe{"/healthcheck", 5 * time.Second, 1},
			liveness:  probe{"/healthcheck", 10 * time.Second, 3},
		},
		"/readyz": { // what says more than /healthcheck
			readiness: probe{"/readyz", 2 * time.Second, 3},
			liveness:  probe{"/livez", 10 * time.Second, 3},
		},
	}
}

// pod is what a kubelet thinks of a container.
type pod struct {
	base string // of URLs

	mu             sync.Mutex
	started, ready bool
	lost           int    // how often it was ready, and then was not
	restart        string // the probe for which it would have been restarted
}

// startPod probes a server until the test ends.
func startPod(t *testing.T, d *daemon, p probes) *pod {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	o := &pod{base: "http://" + d.At["HTTP"], started: p.startup.path == ""}
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { o.watch(ctx, p.startup, o.startup) })
	wg.Go(func() { o.watch(ctx, p.readiness, o.readiness) })
	wg.Go(func() { o.watch(ctx, p.liveness, o.liveness) })
	return o
}

// watch reports each answer to a probe, with the number of failures in a row.
func (o *pod) watch(ctx context.Context, p probe, tell func(p probe, failures int)) {
	if p.path == "" {
		return
	}
	again := time.NewTicker(p.period / scale)
	defer again.Stop()
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		if o.passes(ctx, p.path) {
			failures = 0
		} else {
			failures++
		}
		if ctx.Err() == nil {
			tell(p, failures)
		}
	}
}

// passes makes a probe as a kubelet does, but waits for longer than the kubelet's one second, because this machine may
// be busy.
func (o *pod) passes(ctx context.Context, path string) bool {
	code, _, err := testkit.Fetch(ctx, http.MethodGet, o.base+path, "")
	return err == nil && code >= 200 && code < 400
}

func (o *pod) startup(p probe, failures int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if failures == 0 {
		o.started = true
	} else if !o.started && failures >= p.threshold {
		o.restart = "startup"
	}
}

func (o *pod) readiness(p probe, failures int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.started:
	case failures == 0:
		o.ready = true
	case failures >= p.threshold && o.ready:
		o.ready = false
		o.lost++
	}
}

func (o *pod) liveness(p probe, failures int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.started && failures >= p.threshold {
		o.restart = "liveness"
	}
}

// isReady reports whether requests are sent to the container.
func (o *pod) isReady() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready
}

// want checks that nothing was restarted, and that the container, once in service, has or has not stayed there.
func (o *pod) want(t *testing.T, who string, stayed bool) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.restart != "" {
		t.Errorf("%s: restarted for its %s probe", who, o.restart)
	}
	if (o.lost == 0) != stayed {
		t.Errorf("%s: taken out of service %d times; want it to stay: %t", who, o.lost, stayed)
	}
}

// TestProbesWithoutRedis simulates what Envoy Gateway and Istio do to a server whose Redis is missing for a minute at
// the start, and is down for another minute later: the server is never restarted, and answers each request as
// DEFAULT_ON_FAILURE says.
func TestProbesWithoutRedis(t *testing.T) {
	t.Parallel()
	const outage = time.Minute / scale
	for policy, want := range map[string]string{"error": "Unavailable", "allow": "OK", "deny": "OVER_LIMIT", "local": "OK"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			db.Kill()
			d := startDaemon(t, db, endlessRules, "DEFAULT_ON_FAILURE="+policy)
			all := make(map[string]*pod)
			for who, p := range pods() {
				all[who] = startPod(t, d, p)
			}
			ready := func(when string, want map[string]bool) {
				t.Helper()
				for who, o := range all {
					testkit.Eventually(t, fmt.Sprintf("%s: %s is ready: %t", when, who, want[who]), func() bool { return o.isReady() == want[who] })
				}
			}
			answers := policy != "error" // the server, without Redis
			client := d.client()

			answersFor(t, client, outage, want)
			ready("a start without Redis", map[string]bool{"Envoy Gateway": answers, "/readyz": answers})
			db.Restart()
			ready("Redis is there", map[string]bool{"Envoy Gateway": true, "/readyz": true})
			exact(t, d, client)

			db.Kill()
			answersFor(t, client, outage, want)
			ready("Redis has died", map[string]bool{"Envoy Gateway": true, "/readyz": answers})
			db.Restart()
			ready("Redis is back", map[string]bool{"Envoy Gateway": true, "/readyz": true})
			exact(t, d, client)

			all["Envoy Gateway"].want(t, "Envoy Gateway", true)
			all["/readyz"].want(t, "/readyz", answers)
		})
	}
}

// answersFor asks for a while, and expects the same answer each time: a code of rate limits, or of an error.
func answersFor(t *testing.T, client rlsv3.RateLimitServiceClient, d time.Duration, want string) {
	t.Helper()
	n := 0
	for begin := time.Now(); time.Since(begin) < d; n++ {
		if got := asked(t, client); got != want {
			t.Fatalf("request %d: %s, want %s", n, got, want)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Logf("%d requests were answered %s", n, want)
}

func asked(t *testing.T, client rlsv3.RateLimitServiceClient) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := client.ShouldRateLimit(ctx, request("user", "ann"))
	if err != nil {
		return status.Code(err).String()
	}
	return answer.GetOverallCode().String()
}

// exact waits until requests are decided in Redis again.
func exact(t *testing.T, d *daemon, client rlsv3.RateLimitServiceClient) {
	t.Helper()
	testkit.Eventually(t, "a request is decided in Redis", func() bool {
		before := fallbacks(d)
		return asked(t, client) == "OK" && fallbacks(d) == before
	}, d.Log.String)
}

// fallbacks are the series that count what was decided without Redis.
func fallbacks(d *daemon) string {
	body, _ := d.get("DEBUG", "/metrics")
	var all strings.Builder
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "ratelimitd_backend_fallback_total") {
			all.WriteString(line)
		}
	}
	return all.String()
}
