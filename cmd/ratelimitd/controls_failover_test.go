package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// deployment is Redis servers, and how the one that has the controls is lost.
type deployment struct {
	env  []string
	lose func()
}

// sentinels is a master and its replica, watched by three sentinels.
func sentinels(t *testing.T) deployment {
	t.Helper()
	master := redistest.Start(t)
	replica := redistest.Replica(t, master)
	all := redistest.Sentinels(t, master, "mine", 3)
	redistest.AwaitSentinels(all, "mine", 1)
	url := "mine"
	for _, s := range all {
		url += "," + s.Addr()
	}
	return deployment{[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=" + url}, func() {
		redistest.Down(all, "mine", time.Second)
		testkit.Eventually(t, "the replica has what the master has", replica.InStep)
		master.Kill()
		testkit.Eventually(t, "the replica is the master", replica.IsMaster)
	}}
}

// cluster is three masters with a replica each.
func cluster(t *testing.T) deployment {
	t.Helper()
	nodes := redistest.Cluster(t, 3)
	urls := make([]string, 0, len(nodes))
	for _, n := range nodes {
		urls = append(urls, n.Addr())
	}
	return deployment{[]string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(urls, ",")}, func() {
		redistest.NodeTimeout(nodes, time.Second)
		for _, n := range nodes[:3] {
			if n.CLI("EXISTS", "rl:{notes}:text") == "1" {
				n.Kill()
				return
			}
		}
		t.Error("no master has the controls")
	}}
}

// TestControlsFailover is the story of an operator with two servers whose Redis fails over.
func TestControlsFailover(t *testing.T) {
	t.Parallel()
	for name, deploy := range map[string]func(*testing.T) deployment{"sentinel": sentinels, "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := deploy(t)
			start := func() controlled {
				d := startProcess(t, controlRules, append([]string{"BACKEND_TYPE=redis", "ADMIN=true", "REDIS_OP_TIMEOUT=10s"}, redis.env...)...)
				d.ready()
				return controlled{d, d.client()}
			}
			servers := []controlled{start(), start()}
			obey := func(key, value string, want bool) {
				t.Helper()
				for i, d := range servers {
					testkit.Eventually(t, fmt.Sprintf("server %d obeys", i), func() bool {
						answer, err := d.ShouldRateLimit(t.Context(), request(key, value)) // which may fail while there is no master
						return err == nil && (answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT) == want
					}, d.Log.String)
				}
			}
			eventually := func(d controlled, args ...string) {
				t.Helper()
				said := ""
				testkit.Eventually(t, "the command is carried out", func() bool {
					cmd := exec.CommandContext(context.WithoutCancel(t.Context()), shipped.Path(t, "ratelimitd"), append(args, "--addr", d.At["GRPC"])...)
					out, err := cmd.CombinedOutput()
					said = string(out)
					return err == nil
				}, func() string { return said })
			}
			for range 3 {
				servers[0].over("user", "ann")
			}
			obey("user", "ann", true)
			eventually(servers[0], "allow", "shop", "user=ann", "--for", "1h")
			eventually(servers[1], "block", "shop", "hot=eve", "--for", "1h", "--reason", "attack")
			obey("user", "ann", false)
			obey("hot", "eve", true)

			redis.lose()
			obey("hot", "eve", true)
			obey("user", "ann", false)
			servers[0].ready()
			eventually(servers[0], "block", "shop", "hot=mallory", "--for", "1h")
			servers[1].kill()
			servers[1] = start()
			obey("hot", "mallory", true)
			obey("hot", "eve", true)
			obey("user", "ann", false)
			eventually(servers[1], "lift", "shop", "hot=eve")
			obey("hot", "eve", false)
			told := ""
			testkit.Eventually(t, "audit tells it all", func() bool {
				told = servers[0].command("audit", "--last", "500", "shop") // those that failed meanwhile are among them
				allow, block, lift := strings.Index(told, "allow for 1h0m0s"), strings.Index(told, "attack"), strings.Index(told, "lift ")
				return 0 < lift && lift < block && block < allow
			}, func() string { return told })
		})
	}
}
