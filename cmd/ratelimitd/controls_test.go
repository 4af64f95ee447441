package main

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const controlRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: hot
    rate_limit: {unit: year, requests_per_unit: 1000000, lease: 1000}
`

// command runs a command against d, and returns what it prints.
func (d *daemon) command(name string, args ...string) string {
	d.t.Helper()
	args = append([]string{name, "--addr", "unix:" + d.At["SOCKET"], "--timeout", patience.String()}, args...)
	out, err := exec.CommandContext(d.t.Context(), shipped.Path(d.t, "ratelimitd"), args...).CombinedOutput()
	if err != nil {
		d.t.Fatalf("ratelimitd %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// controlled is a server, and a client of it.
type controlled struct {
	*daemon
	rlsv3.RateLimitServiceClient
}

// over reports whether a request is rejected.
func (c controlled) over(key, value string) bool {
	c.t.Helper()
	answer := decide(c.t, c, request(key, value))
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT
}

// startControlled starts a server on a Redis, and waits until it is ready.
func startControlled(t *testing.T, db *redistest.Server, rules string, env ...string) controlled {
	t.Helper()
	d := startDaemon(t, db, rules, append(env, "REDIS_OP_TIMEOUT=10s")...)
	d.ready()
	return controlled{d, d.client()}
}

// TestControls is the story of an operator with three servers on one Redis, one of them without ADMIN.
func TestControls(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	start := func() controlled { return startControlled(t, db, controlRules, "ADMIN=true") }
	servers := []controlled{start(), start(), startControlled(t, db, controlRules)}
	obey := func(key, value string, want bool) {
		t.Helper()
		for i, d := range servers {
			took := testkit.Eventually(t, "a server obeys", func() bool { return d.over(key, value) == want }, d.Log.String)
			t.Logf("server %d obeys after %v", i, took.Round(time.Millisecond))
		}
	}
	for range 3 {
		servers[0].over("user", "ann")
	}
	obey("user", "ann", true)
	if said := servers[1].command("allow", "shop", "user=ann", "--for", "1h"); !strings.Contains(said, " on 3 replicas · undo: ") {
		t.Errorf("allow says\n%s", said)
	}
	obey("user", "ann", false)

	// Each is told how the others are: a drained one is, and a healthy one has the same rules.
	servers[1].command("drain")
	testkit.Eventually(t, "a drained replica is shown", func() bool {
		said := servers[0].command("status")
		return strings.Contains(said, ": drained, rules ") && strings.Contains(said, " (this one)") && strings.Contains(said, ": ok, rules ")
	}, func() string { return servers[0].command("status") })
	servers[1].command("drain", "--undo")
	testkit.Eventually(t, "it is put back, and there are three", func() bool {
		said := servers[0].command("status", "--output", "json")
		return strings.Count(said, `"health":"HEALTH_OK","isDrained":false,"rulesVersion":"`) == 3 && strings.Count(said, `"isSelf":true`) == 1
	}, func() string { return servers[0].command("status", "--output", "json") })

	// A block wins over hits that all have leased, and what ends it is felt at once.
	for _, d := range servers {
		testkit.Eventually(t, "hits are leased", func() bool {
			for range 20 {
				d.over("hot", "x")
			}
			return d.metric("ratelimitd_near_cache_spent_total") > 0
		})
	}
	servers[0].command("limit", "shop", "hot=x", "--to", "1/year", "--for", "1h")
	obey("hot", "x", true)
	servers[1].command("lift", "shop", "hot=x")
	obey("hot", "x", false)
	servers[0].command("block", "shop", "hot=x", "--for", "1h", "--reason", "attack")
	obey("hot", "x", true)

	// Who is killed and comes back knows it before it answers, and so does everyone while Redis is down.
	servers[1].kill()
	servers[1] = start()
	if !servers[1].over("hot", "x") || servers[1].over("user", "ann") {
		t.Error("a server that comes back does not know the controls")
	}
	db.Kill()
	obey("hot", "x", true)
	obey("user", "ann", false)
	db.Restart()
	for _, d := range servers {
		d.ready()
	}
	late := start()
	servers = append(servers, late)
	obey("hot", "x", true)
	obey("user", "ann", false)

	if said := late.command("controls"); !strings.Contains(said, " shop hot=x") || !strings.Contains(said, " shop user=ann") || !strings.Contains(said, "attack") {
		t.Errorf("controls says\n%s", said)
	}
	late.command("lift", "shop", "hot=x")
	obey("hot", "x", false)
	// A call is carried out once, whichever server is asked again.
	once := metadata.AppendToOutgoingContext(t.Context(), "x-request-id", "once")
	reset := &adminv1.ResetRequest{Domain: "shop", Entries: []*adminv1.Entry{{Key: "user", Value: "bob"}}}
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.AlreadyExists} {
		if _, err := adminv1.NewAdminServiceClient(servers[i/2].operate()).Reset(once, reset); status.Code(err) != want {
			t.Errorf("call %d: %v; want %v", i, err, want)
		}
	}
	told := ""
	testkit.Eventually(t, "the audit has what was changed since Redis lost all", func() bool {
		told = late.command("audit", "shop")
		lift, reset := strings.Index(told, "lift "), strings.Index(told, " reset ")
		return 0 < reset && reset < lift
	}, func() string { return told })
}
