package redis

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// withOnly starts a server that has only the commands for which keep returns true.
func withOnly(t *testing.T, keep func(name string) bool, config ...string) *redistest.Server {
	t.Helper()
	all, err := redistest.Start(t).Client().Command(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if !keep(name) {
			config = append(config, "rename-command "+name+` ""`)
		}
	}
	return redistest.Start(t, config...)
}

// laterThan4 returns the commands added after Redis 4, or none if the server cannot list them, which requires Redis 7.
func laterThan4(t *testing.T) map[string]bool {
	t.Helper()
	docs, err := redistest.Start(t).Client().Do(t.Context(), "command", "docs").Result()
	if err != nil && strings.Contains(err.Error(), "Unknown subcommand") { // the error of Redis 6
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	later := map[string]bool{}
	for name, about := range docs.(map[any]any) {
		if since := about.(map[any]any)["since"].(string); since >= "5" {
			later[name.(string)] = true
		}
	}
	if !later["hello"] || !later["acl"] || later["incrby"] || later["eval"] {
		t.Fatalf("later than 4: %v", later)
	}
	return later
}

// uses takes, checks, refunds and resets in each window that c supports, over two generations of connections.
func uses(t *testing.T, c Config) {
	t.Helper()
	c.DialTimeout, c.OpTimeout = slow, slow
	b := run(t, c, true)
	all := []engine.Limits{lasting(10)}
	if c.KeyFormat == OurKeys {
		all = append(everyAlgorithm(), lasting(10))
	}
	for range 2 {
		for i, limits := range all {
			for _, step := range []struct {
				mode           backend.Mode
				cost, admitted uint64
				left           uint64 // below the limit, of the last limits
			}{{backend.Take, 3, 1, 0}, {backend.Peek, 1, 1, 3}, {
				backend.Refund, 2, 1,
				3,
			}, {backend.Peek, 1, 1, 1}, {backend.Reset, 0, 1, 1}, {backend.Peek, 1, 1, 0}} {
				op := backend.Op{Key: keyOf(i), Name: nameOf(i), Limits: limits, Mode: step.mode, Take: engine.Take{Cost: step.cost, Count: 1}}
				ops := []backend.Op{op}
				b.Apply(t.Context(), ops)
				d := ops[0].Decision
				if ops[0].Err != nil || d.Admitted != step.admitted {
					t.Errorf("mode %d of %+v: %+v, %v", step.mode, limits, d, ops[0].Err)
				}
				if i == len(all)-1 && (step.mode == backend.Take || step.mode == backend.Peek) && d.Left != 10-step.left {
					t.Errorf("mode %d: %d left, want %d", step.mode, d.Left, 10-step.left)
				}
			}
		}
		for n := range b.main.nodes() {
			n.renewed.Add(1) // for connections with cached properties
		}
	}
	b.Apply(t.Context(), []backend.Op{{Key: keyOf(0), Name: nameOf(0), Limits: all[0], Mode: backend.Reset}})
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestAnyRedis counts with servers that lack many commands: behind proxies, in old versions, in managed services, and for a user with few
// permissions.
func TestAnyRedis(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	only := func(names ...string) func(string) bool {
		return func(name string) bool { return slices.Contains(names, name) }
	}
	without := func(names ...string) func(string) bool {
		return func(name string) bool { return !slices.Contains(names, name) }
	}
	plain := []string{redistest.Start(t).Addr(), redistest.Start(t).Addr()}
	secured := redistest.Start(t, "requirepass word").Addr()
	later := laterThan4(t)
	user := redistest.Start(t)
	user.CLI("ACL", "SETUSER", "app", "on", ">secret", "~domain_*", "+incrby", "+expire", "+get")
	granted := func(grants string) string { return "user app on >secret " + grants }
	const inCluster = " +cluster|slots +asking"
	reference := redistest.Cluster(t, 3, granted(referenceGrants+inCluster))[0].Addr()
	scripts := redistest.Cluster(t, 3, granted(grants+inCluster))[0].Addr()
	watched := redistest.Start(t, granted(grants))
	sentinel := "main," + redistest.Sentinels(t, watched, "main", 1)[0].Addr()
	for _, c := range []struct {
		name   string
		config Config
	}{
		{"cluster", Config{Type: Cluster, URL: reference, Auth: "app:secret", KeyFormat: ReferenceKeys}},
		{"cluster_with_scripts", Config{Type: Cluster, URL: scripts, Auth: "app:secret"}},
		{"sentinel_with_scripts", Config{Type: Sentinel, URL: sentinel, Auth: "app:secret"}},
		{"twemproxy", Config{URL: redistest.Twemproxy(t, plain).Addr(), KeyFormat: ReferenceKeys}},
		{"twemproxy_with_scripts", Config{URL: redistest.Twemproxy(t, plain, `hash_tag: "{}"`).Addr()}},
		{"twemproxy_with_password", Config{URL: redistest.Twemproxy(t, []string{secured}, "redis_auth: word").Addr(), Auth: "word", KeyFormat: ReferenceKeys}},
		{"only_what_the_reference_sends", Config{URL: withOnly(t, only("ping", "auth", "incrby", "expire", "get", "ttl")).Addr(), KeyFormat: ReferenceKeys}},
		{"redis_4", Config{URL: withOnly(t, func(name string) bool { return !later[name] }, "requirepass word").Addr(), Auth: "word", KeyFormat: ReferenceKeys}},
		{"a_user_with_little", Config{URL: user.Addr(), Auth: "app:secret", KeyFormat: ReferenceKeys}},
		{"managed", Config{URL: withOnly(t, without("config", "acl", "debug", "hello")).Addr()}},
		{"scripts_alone", Config{URL: withOnly(t, without("config", "info", "echo", "ping", "hello", "script")).Addr()}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			uses(t, c.config)
		})
	}
}

// TestMissing checks that the error names the missing capability of a server, and the setting that helps.
func TestMissing(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	noScripts := withOnly(t, func(name string) bool { return name != "eval" && name != "evalsha" })
	noTime := redistest.Start(t, `rename-command TIME ""`)
	proxy := redistest.Twemproxy(t, []string{noScripts.Addr()})
	locked := redistest.Twemproxy(t, []string{redistest.Start(t, "requirepass word").Addr()}, "redis_auth: word")
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{URL: noScripts.Addr()}, "does not run scripts (ERR unknown command …), and counters are kept by scripts: set REDIS_KEY_FORMAT=reference"},
		{Config{URL: proxy.Addr()}, "does not run scripts (ERR unknown command …), and counters are kept by scripts: set REDIS_KEY_FORMAT=reference"},
		{Config{URL: noTime.Addr()}, "does not run scripts (ERR "}, // followed by the error for an unknown command, which varies
		{Config{URL: noTime.Addr()}, "), and counters are kept by scripts: set REDIS_KEY_FORMAT=reference"},
		{Config{URL: redistest.Twemproxy(t, []string{noTime.Addr()}).Addr()}, "does not run scripts (ERR "},
		{
			Config{URL: "redis://" + proxy.Addr() + "/2", KeyFormat: ReferenceKeys},
			"A proxy may do so on AUTH with a user, and on SELECT: leave out the user, or the database",
		},
		{
			Config{URL: locked.Addr(), Auth: "app:word", KeyFormat: ReferenceKeys},
			"A proxy may do so on AUTH with a user, and on SELECT: leave out the user, or the database",
		},
		{Config{URL: locked.Addr(), Auth: "other", KeyFormat: ReferenceKeys}, "invalid password"},
	} {
		c.config.DialTimeout = slow
		b := opened(t, c.config)
		err := reached(t, b)
		if _, ok := errors.AsType[*remote.Error](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.config.URL, err, c.want)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestDeadShard checks that behind a proxy, the failure of any one server does not affect the others.
func TestDeadShard(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	for dead := range 2 {
		servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
		proxy := redistest.Twemproxy(t, []string{servers[0].Addr(), servers[1].Addr()}, `hash_tag: "{}"`)
		servers[dead].Kill()
		b := opened(t, Config{URL: proxy.Addr(), DialTimeout: slow})
		if err := reached(t, b); err != nil {
			t.Errorf("without server %d: %v", dead, err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTooOld(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"redis_version:6.0.16\r\n":                         "this is Redis 6.0.16, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required",
		"redis_version:5.0.7\r\n":                          "this is Redis 5.0.7",
		"redis_version:6.2.0\r\n":                          "",
		"redis_version:8.2.1\r\n":                          "",
		"redis_version:7.2.4\r\nvalkey_version:7.2.5\r\n":  "",
		"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n":  "",
		"redis_version:7.2.4\r\nvalkey_version:7.1.99\r\n": "this is Valkey 7.1.99",
		"": "",
	} {
		s := parseInfo(info)
		err := s.old()
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", info, err, want)
		}
	}
}
