package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// tour runs the steps. It stops at the first failed one.
func (d *demo) tour(ctx context.Context) error {
	for i, step := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"Envoy and ratelimitd, from " + example, d.begin},
		{"alice has 1000 tokens an hour, and each call takes 300", d.spend},
		{"Which rule rejects alice, in which line of which file?", d.ask},
		{"bob is blocked, and let in again", d.control},
		{"What Envoy counts, and what ratelimitd counts", d.count},
		{"Without ratelimitd", d.fail},
		{"40 calls at once, of 50 tokens each, and a budget of 1000", d.reserve},
		{"Two replicas, which share a Redis; one is killed", d.share},
	} {
		if i == 0 {
			d.printf("%s\n", step.title)
		} else {
			d.printf("\n%d  %s\n", i, step.title)
		}
		if err := step.play(ctx); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSuffix(step.title, "?"), err)
		}
	}
	return nil
}

// begin starts the programs for the first four steps, and prints the differences from the files.
func (d *demo) begin(ctx context.Context) (err error) {
	d.printf("   envoy.yaml, but for:\n")
	for _, e := range d.usual() {
		d.printf("     %-35s → %-37s %s\n", e.old, e.becomes, e.why)
	}
	d.printf("   The variables in compose.yaml, and:\n     %s\n", strings.Join(local(), " "))
	d.printf("   $ %s\n", d.serverProgram)
	if d.first, err = d.startFirst(ctx); err != nil {
		return err
	}
	if err := d.startEnvoy(ctx, "envoy.yaml"); err != nil {
		return err
	}
	return d.await(ctx, "admin", healthy, 1)
}

// startFirst starts the ratelimitd that commands and the console use.
func (d *demo) startFirst(ctx context.Context, more ...string) (*proc.Server, error) {
	return d.startServer(ctx, "ratelimitd", d.port("grpc"), append(more, "PORT="+d.port("http"), "DEBUG_PORT="+d.port("debug"))...)
}

const (
	chat    = "/v1/chat"
	perCall = 300 // tokens reported by the application
	healthy = "cluster.ratelimitd.membership_healthy"
	charged = "ratelimit.service.rate_limit.edge.user.budget_tokens.total_hits"
)

// calls makes calls as a user, prints the answers, and returns an error if they differ from want.
func (d *demo) calls(ctx context.Context, user, path string, want ...int) error {
	d.printf("   $ curl -i -H 'x-user: %s' http://%s%s  # %d ×\n   |", user, d.addr("edge"), path, len(want))
	for i, status := range want {
		got, err := d.get(ctx, "edge", path, user)
		if err != nil {
			return err
		}
		d.printf(" %d", got.status)
		if got.status != status || (status == http.StatusTooManyRequests) != (got.retry != "") {
			return fmt.Errorf("call %d should be answered %d, not %d (retry-after: %q)", i+1, status, got.status, got.retry)
		}
		if got.retry != "" {
			d.printf("  retry-after: %s", got.retry)
		}
		if path == chat && status == http.StatusOK && !d.first.Over() { // Envoy charges at the end of the response
			if err := d.await(ctx, "debug", charged, perCall*(i+1)); err != nil {
				return err
			}
		}
	}
	d.printf("\n")
	return nil
}

func (d *demo) spend(ctx context.Context) error {
	return d.calls(ctx, "alice", chat, 200, 200, 200, 200, 429)
}

func (d *demo) ask(ctx context.Context) error {
	d.printf("   $ export RATELIMITD_ADDR=%s\n", d.addr("grpc"))
	if err := d.ratelimitd(ctx, "top --once edge", "user=alice,budget=tokens"); err != nil {
		return err
	}
	return d.ratelimitd(ctx, "explain edge user=alice,budget=tokens",
		"limited by edge.user.budget_tokens ("+example+"/rules/edge.yaml:", "by edge.user.budget_tokens (")
}

func (d *demo) control(ctx context.Context) error {
	if err := d.ratelimitd(ctx, "block edge user=bob --for 1h", "Blocked edge user=bob for 1h"); err != nil {
		return err
	}
	if err := d.calls(ctx, "bob", "/", 429); err != nil {
		return err
	}
	if err := d.ratelimitd(ctx, "lift edge user=bob", "Lifted block edge user=bob"); err != nil {
		return err
	}
	return d.calls(ctx, "bob", "/", 200)
}

// count compares the counters of both sides after steps 1 to 3: 7 requests, 2 of them rejected, and 4 late charges.
func (d *demo) count(ctx context.Context) error {
	const passed, rejected, charges = 5, 2, 4
	envoy, err := d.stats(ctx, "admin")
	if err != nil {
		return err
	}
	ours, err := d.stats(ctx, "debug")
	if err != nil {
		return err
	}
	d.printf("   $ curl http://%s/stats  # Envoy's; ours: http://%s/stats\n", d.addr("admin"), d.addr("debug"))
	for _, row := range []struct {
		in   map[string]int
		name string
		want int
		of   string
	}{
		{envoy, "cluster.application.ratelimit.edge.ok", passed, "Envoy: alice's first 4, bob's second"},
		{envoy, "cluster.application.ratelimit.edge.over_limit", rejected, "Envoy: alice's fifth, bob's first"},
		{envoy, "cluster.ratelimitd.upstream_rq_total", passed + rejected + charges, "Envoy: these 7, and 4 charges after answers"},
		{ours, "ratelimit_server.ShouldRateLimit.total_requests", passed + rejected + charges, "ratelimitd: the same"},
		{ours, charged, charges * perCall, "ratelimitd: 4 × 300 tokens"},
	} {
		d.printf("   | %4d  %-63s  %s\n", row.in[row.name], row.name, row.of)
		if row.in[row.name] != row.want {
			return fmt.Errorf("%s should be %d, and is %d", row.name, row.want, row.in[row.name])
		}
	}
	return nil
}

func (d *demo) fail(ctx context.Context) error {
	d.printf("   $ kill -9 %d  # ratelimitd; with failure_mode_deny: false all pass\n", d.first.PID())
	d.first.Kill()
	if err := d.calls(ctx, "alice", chat, 200, 200, 200); err != nil {
		return err
	}
	if err := d.startEnvoy(ctx, "envoy-deny.yaml", deny()); err != nil {
		return err
	}
	return d.calls(ctx, "alice", chat, 500, 500, 500)
}

// share stops one of two replicas while a user consumes a limit of 40 at a time, and verifies that the limit holds.
func (d *demo) share(ctx context.Context) error {
	const limit, before, most = 40, 20, 200
	const noticed = 12 // calls that may pass undecided; outlier_detection ejects the replica after 5, health checks after about 20
	socket, err := d.startRedis(ctx)
	if err != nil {
		return err
	}
	redis := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + socket}
	d.printf("   $ %s \\\n     %s  # and another one on %s\n", strings.Join(redis, " "), d.serverProgram, d.addr("second"))
	if d.first, err = d.startFirst(ctx, redis...); err != nil {
		return err
	}
	if d.second, err = d.startServer(ctx, "ratelimitd-2", d.port("second"), append(redis, "PORT=0", "DEBUG_PORT=0")...); err != nil {
		return err
	}
	if err := d.startEnvoy(ctx, "envoy-two.yaml", d.replica()); err != nil {
		return err
	}
	if err := d.await(ctx, "admin", healthy, 2); err != nil {
		return err
	}
	begin := time.Now()
	passed, err := d.until(ctx, before)
	if err != nil {
		return err
	}
	d.printf("   carol may call / %d times at once: %d calls pass\n   $ kill -9 %d  # the second replica\n", limit, passed, d.second.PID())
	d.second.Kill()
	more, err := d.until(ctx, most)
	if err != nil {
		return err
	}
	all, err := d.stats(ctx, "admin")
	if err != nil {
		return err
	}
	undecided := all["cluster.application.ratelimit.edge.failure_mode_allowed"]
	d.printf("   | %d more are decided, and pass; then 429. %d passed undecided before Envoy noticed.\n", more-undecided, undecided)
	decided, back := passed+more-undecided, int(time.Since(begin)/(3*time.Second))+1 // 20 a minute refill
	if more == most || passed+more < limit || decided > limit+back {
		return fmt.Errorf("%d calls of carol were decided, and passed; it should be %d, or %d more for the time that it took", decided, limit, back)
	}
	if undecided > noticed {
		return fmt.Errorf("%d calls passed undecided; the outlier_detection of the example should end that after %d at most", undecided, noticed)
	}
	return d.second.Start(ctx)
}

// until makes up to most calls as carol, 20 a second, until one is rejected, and returns the number that passed. They take more
// than a second, because Envoy updates its list of replicas at most once a second (update_merge_window).
func (d *demo) until(ctx context.Context, most int) (passed int, err error) {
	for ; passed < most; time.Sleep(50 * time.Millisecond) {
		got, err := d.get(ctx, "edge", "/", "carol")
		if err != nil || got.status == http.StatusTooManyRequests {
			return passed, err
		}
		if got.status != http.StatusOK {
			return passed, fmt.Errorf("carol is answered %d after %d calls", got.status, passed)
		}
		passed++
	}
	return passed, nil
}
