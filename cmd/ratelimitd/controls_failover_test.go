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
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// deployment is Redis servers, and how the one is lost, once its replica has what it has, whose keys begin with what is given.
type deployment struct {
	env  []string
	lose func(key string)
}

// replicated waits until a replica has all that was written to a master, which has the slot of a key.
func replicated(t *testing.T, master *redistest.Server, key string) {
	t.Helper()
	last := master.Client().Conn()
	defer func() { _ = last.Close() }() // nothing is under way any more
	testkit.Check(t, last.Set(t.Context(), key+":last", 1, time.Hour).Err())
	testkit.Eventually(t, "a replica has what the master has", func() bool {
		n, err := last.Wait(t.Context(), 1, time.Second).Result()
		return err == nil && n > 0
	})
}

// sentinels is a master and its replica, watched by three sentinels.
func sentinels(t *testing.T) deployment {
	t.Helper()
	w := redistest.StartWatched(t)
	return deployment{[]string{"REDIS_TYPE=SENTINEL", "REDIS_URL=" + w.URL()}, func(key string) {
		redistest.Down(w.Sentinels, redistest.MasterName, time.Second)
		replicated(t, w.Master, key)
		w.Master.Kill()
		testkit.Eventually(t, "the replica is the master", w.Replica.IsMaster)
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
	return deployment{[]string{"REDIS_TYPE=CLUSTER", "REDIS_URL=" + strings.Join(urls, ",")}, func(key string) {
		redistest.NodeTimeout(nodes, time.Second)
		for _, n := range nodes[:3] {
			if n.CLI("KEYS", key+"*") != "" {
				replicated(t, n, key)
				n.Kill()
				return
			}
		}
		t.Errorf("no master has %s", key)
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
					cmd := exec.CommandContext(context.WithoutCancel(t.Context()), shipped.Path(t, "ratelimitd"), append(args, "--addr", "unix:"+d.At["SOCKET"])...)
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

			redis.lose("rl:{controls}:entries")
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
				allow, block, lift := strings.Index(told, "allow for 1h"), strings.Index(told, "attack"), strings.Index(told, "lift ")
				return 0 < lift && lift < block && block < allow
			}, func() string { return told })
		})
	}
}

// TestReservationsFailover: reservations outlive the server that took them and the Redis that has them, and are settled once.
func TestReservationsFailover(t *testing.T) {
	t.Parallel()
	for name, deploy := range map[string]func(*testing.T) deployment{"sentinel": sentinels, "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := deploy(t)
			start := func() (*daemon, *envoys) {
				d := startProcess(t, reservationRules, append([]string{"BACKEND_TYPE=redis", "ADMIN=true", "REDIS_OP_TIMEOUT=10s"}, redis.env...)...)
				d.ready()
				return d, &envoys{t: t, clients: []rlsv3.RateLimitServiceClient{d.client()}}
			}
			first, g := start()
			second, other := start()
			ids := map[string][]string{}
			keys := []string{"fixed_window", "sliding_window", "token_bucket"}
			for _, key := range keys {
				for range 2 {
					answer, err := g.ask(key, "ann", "", 0)
					if err != nil || idOf(answer) == "" {
						t.Fatalf("%s: the first request is answered %v, %v, want an id", key, answer, err)
					}
					ids[key] = append(ids[key], idOf(answer))
				}
			}
			_, counter, _ := strings.Cut(first.command("peek", "llm", "fixed_window=ann"), "counter ")
			counter, _, _ = strings.Cut(counter, "\n")
			first.kill()
			redis.lose(counter)

			for _, key := range keys {
				left := func(want uint32) {
					t.Helper()
					if got := other.left(key, "ann"); got > want || got < want-1 { // a bucket refills slowly, and is reported rounded down
						t.Errorf("%s: %d are left, want %d", key, got, want)
					}
				}
				settle := func(id string, cost uint64) { // which may fail while there is no master
					t.Helper()
					said := ""
					testkit.Eventually(t, "a reservation can be settled", func() bool {
						_, err := other.ask(key, "ann", id, cost)
						said = fmt.Sprint(err)
						return err == nil
					}, func() string { return said }, second.Log.String)
				}
				settle(ids[key][0], 30)
				left(budget - 30 - reservation)
				settle(ids[key][0], 10)
				left(budget - 30 - reservation)
				settle(ids[key][1], 170)
				left(budget - 30 - 170)
			}
		})
	}
}
