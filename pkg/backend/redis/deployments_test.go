package redis

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func TestDeployments(t *testing.T) {
	t.Parallel()
	certs := redistest.NewCertificates(t, "localhost")
	other := redistest.NewCertificates(t, "elsewhere")
	secured := redistest.Start(t, certs.Config()...)
	misnamed := redistest.Start(t, other.Config()...)
	plain := redistest.Start(t, "unixsocket {dir}/redis.sock", "user app on >sec:ret ~* &* +@all", "user default on >word ~* &* +@all")
	file := filepath.Join(t.TempDir(), "auth")
	testkit.WriteFile(t, file, "app:sec:ret\n")
	files := func(c redistest.Certificates, skip bool) remote.TLSFiles {
		return remote.TLSFiles{CA: c.CA, Cert: c.Cert, Key: c.Key, SkipHostname: skip}
	}
	localhost := fmt.Sprintf("localhost:%d", secured.Port())
	for _, c := range []struct {
		name   string
		config Config
		files  remote.TLSFiles
		want   string // text of Check's error
	}{
		{"password", Config{URL: plain.Addr(), Auth: "word"}, remote.TLSFiles{}, ""},
		{"user", Config{URL: plain.Addr(), Auth: "app:sec:ret"}, remote.TLSFiles{}, ""},
		{"file", Config{URL: plain.Addr(), AuthFile: file}, remote.TLSFiles{}, ""},
		{"no_password", Config{URL: plain.Addr()}, remote.TLSFiles{}, "noauth: "},
		{"wrong_password", Config{URL: plain.Addr(), Auth: "app:guess"}, remote.TLSFiles{}, "noauth: "},
		{"no_file", Config{URL: plain.Addr(), AuthFile: file + "x"}, remote.TLSFiles{}, "reading the password"},
		{"unix", Config{URL: plain.Dir() + "/redis.sock", Network: "unix", Auth: "word"}, remote.TLSFiles{}, ""},
		{"not_a_socket", Config{URL: plain.Addr(), Network: "unix", Auth: "word"}, remote.TLSFiles{}, ""},
		{"url_not_of_a_socket", Config{URL: "redis://:word@" + plain.Addr(), Network: "unix"}, remote.TLSFiles{}, ""},
		{"no_socket", Config{URL: plain.Dir() + "/other.sock", Network: "unix"}, remote.TLSFiles{}, "refused: "},
		{"tcp4", Config{URL: plain.Addr(), Network: "tcp4", Auth: "word"}, remote.TLSFiles{}, ""},
		{"tcp6", Config{URL: plain.Addr(), Network: "tcp6", Auth: "word"}, remote.TLSFiles{}, "has no IPv6 address"},
		{"unix_url", Config{URL: "unix://app:sec%3Aret@" + plain.Dir() + "/redis.sock?db=2"}, remote.TLSFiles{}, ""},
		{"url", Config{URL: "redis://app:sec%3Aret@" + plain.Addr() + "/3"}, remote.TLSFiles{}, ""},
		{"url_password", Config{URL: "redis://:word@" + plain.Addr()}, remote.TLSFiles{}, ""},
		{"url_query", Config{URL: "redis://" + plain.Addr() + "?username=app&password=sec%3Aret&db=1"}, remote.TLSFiles{}, ""},
		{"auth_over_url", Config{URL: "redis://:other@" + plain.Addr(), Auth: "word"}, remote.TLSFiles{}, ""},
		{"tls", Config{URL: localhost}, files(certs, false), ""},
		{"rediss", Config{URL: "rediss://" + localhost}, files(certs, false), ""},
		{"tls_no_certificate", Config{URL: localhost}, remote.TLSFiles{CA: certs.CA}, "redis localhost"},
		{"tls_other_ca", Config{URL: localhost}, remote.TLSFiles{CA: other.CA}, "certificate"},
		{"tls_other_name", Config{URL: fmt.Sprintf("localhost:%d", misnamed.Port())}, files(other, false), "elsewhere"},
		{"tls_skip_name", Config{URL: fmt.Sprintf("localhost:%d", misnamed.Port())}, files(other, true), ""},
		{
			"tls_skip_name_other_ca",
			Config{URL: fmt.Sprintf("localhost:%d", misnamed.Port())},
			remote.TLSFiles{CA: certs.CA, SkipHostname: true},
			"unknown authority",
		},
		{"plain_to_tls", Config{URL: localhost}, remote.TLSFiles{}, "reset: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.files != (remote.TLSFiles{}) {
				c.config.TLS = c.files.Load
			}
			c.config.DialTimeout, c.config.OpTimeout = slow, slow
			b := opened(t, c.config)
			defer b.Close()
			err := reached(t, b)
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if op := one(run(t, c.config, true), 1); op.Err != nil {
					t.Fatal(op.Err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want an error with %q", err, c.want)
			}
			for _, secret := range []string{"guess", "sec:ret", "word@"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error tells a password: %v", err)
				}
			}
		})
	}
}

func TestConfigInvalid(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"the URL is empty":                    {},
		"expected master name":                {Type: Sentinel, URL: "localhost:26379"},
		"address 2 of 2":                      {Type: Cluster, URL: "localhost:1,localhost"},
		"type 7":                              {Type: 7, URL: "x:1"},
		"socket type \"udp\"":                 {Network: "udp", URL: "x:1"},
		"pool size is -1":                     {PoolSize: -1, URL: "x:1"},
		"timeout is -3ns":                     {OpTimeout: -3, URL: "x:1"},
		"connecting is -1ns":                  {DialTimeout: -1, URL: "x:1"},
		"jitter is -1ns":                      {ExpirationJitter: -1, URL: "x:1"},
		"key format 9":                        {KeyFormat: 9, URL: "x:1"},
		"both a password and a password file": {Auth: "a", AuthFile: "b", URL: "x:1"},
		"password file are set for the sent":  {SentinelAuth: "a", SentinelAuthFile: "b", URL: "x:1"},
		"within 999ms; it must be at least":   {AuthMaxAge: 999 * time.Millisecond, URL: "x:1"},
		"its scheme is not known":             {URL: "http://x:1"},
		"its database is not a number":        {URL: "redis://x:1/two"},
		"it is not a URL":                     {URL: "redis://user:hidden@x:port"},
		"only has database 0":                 {Type: Cluster, URL: "redis://x:1/2"},
		"per second: redis: the URL":          {URL: "x:1", PerSecond: &Config{}},
		"address 1 of 1: it has no po":        {URL: "localhost"},
	} {
		b, err := New(c)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("New(%+v) = %v, want an error with %q", c, err, want)
		}
		if err == nil {
			b.Close()
		}
	}
}

func TestPerSecond(t *testing.T) {
	t.Parallel()
	long, short := redistest.Start(t), redistest.Start(t)
	b := run(t, Config{
		URL: long.Addr(), PerSecond: &Config{URL: short.Addr(), OpTimeout: slow}, KeyPrefix: "mine:", OpTimeout: slow,
		Now: func() engine.Micros { return 1e15 }, // no second ends, so no key expires
	}, true)
	second := engine.Limits{{Algorithm: engine.FixedWindow, Hits: 10, Window: 1e6}}
	minute := engine.Limits{{Algorithm: engine.FixedWindow, Hits: 20, Window: 60e6}}
	long.CLI("FLUSHALL")
	short.CLI("FLUSHALL")
	ops := []backend.Op{
		{Key: keyOf(1), Limits: second, Take: engine.Take{Cost: 1, Count: 1}},
		{Key: keyOf(2), Limits: minute, Take: engine.Take{Cost: 1, Count: 1}},
		{Key: keyOf(3), Limits: second, Take: engine.Take{Cost: 1, Count: 1}},
	}
	b.Apply(t.Context(), ops)
	b.Apply(t.Context(), ops[:1])
	b.Apply(t.Context(), ops[1:2])
	for i := range ops {
		if ops[i].Err != nil || ops[i].Decision.Admitted != 1 {
			t.Errorf("op %d: %+v, %v", i, ops[i].Decision, ops[i].Err)
		}
	}
	if got := long.CLI("DBSIZE"); got != "1" {
		t.Errorf("the first Redis holds %s keys, want 1", got)
	}
	if got := short.CLI("DBSIZE"); got != "2" {
		t.Errorf("the second Redis holds %s keys, want 2", got)
	}
	if got := short.CLI("KEYS", "*"); !strings.HasPrefix(got, "mine:rl:{") {
		t.Errorf("the second Redis holds %q, want the prefix of the first", got)
	}
}

// TestBothConnections checks that a backend with two deployments counts as connected once both are, and then while at least one is.
func TestBothConnections(t *testing.T) {
	t.Parallel()
	long, short := redistest.Start(t), redistest.Start(t)
	short.Kill()
	var active atomic.Int64
	b := run(t, Config{
		URL: long.Addr(), PerSecond: &Config{URL: short.Addr()}, OpTimeout: slow,
		Observer: remote.Observer{Connections: func(n int) { active.Store(int64(n)) }},
	}, true)
	if n := active.Load(); n != 0 || b.Connections() != 0 {
		t.Errorf("%d connections were reported and %d are counted, want 0 without one to the second deployment", n, b.Connections())
	}
	short.Restart()
	testkit.Eventually(t, "two connections", func() bool { return active.Load() >= 2 })
	long.Kill()
	testkit.Eventually(t, "the loss", func() bool { return b.main.one.links.Load() == 0 })
	if active.Load() == 0 {
		t.Error("no connections are reported, though there are those to the second deployment")
	}
	short.Kill()
	testkit.Eventually(t, "no connection", func() bool { return active.Load() == 0 })
}

// TestCluster runs the suite on a cluster, in brief; TestScripts has all of it.
func TestCluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	b := run(t, Config{Type: Cluster, URL: nodes[0].Addr() + ",127.0.0.1:1", OpTimeout: slow}, true)
	if got := len(*b.main.cluster.nodes.Load()); got != 3 {
		t.Errorf("%d nodes are known, want the three masters", got)
	}
	backendtest.Run(t, backendtest.Harness{Calls: 4, Takes: 2000, Brief: true, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		for _, s := range nodes[:3] {
			s.CLI("FLUSHALL")
		}
		return run(tb, Config{Type: Cluster, URL: nodes[1].Addr(), Now: now, OpTimeout: slow}, true)
	}})
}

// TestClusterReference checks that the reference's keys, which have no hash tag, are spread over the cluster.
func TestClusterReference(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	b := run(t, Config{Type: Cluster, URL: nodes[0].Addr(), KeyFormat: ReferenceKeys, OpTimeout: slow}, true)
	for round := range uint64(3) {
		ops := make([]backend.Op, 200)
		for i := range ops {
			ops[i] = backend.Op{Key: keyOf(i), Name: nameOf(i), Limits: lasting(10), Take: engine.Take{Cost: 1, Count: 1}}
		}
		b.Apply(t.Context(), ops)
		for i := range ops {
			if ops[i].Err != nil || ops[i].Decision.Left != 10-round {
				t.Fatalf("round %d, op %d: %d left, %v; want %d", round, i, ops[i].Decision.Left, ops[i].Err, 10-round)
			}
		}
	}
	for i, s := range nodes[:3] {
		if s.CLI("DBSIZE") == "0" {
			t.Errorf("master %d holds no keys", i)
		}
	}
}

func TestF07_ClusterMigration(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	b := run(t, Config{Type: Cluster, URL: nodes[0].Addr(), OpTimeout: slow}, true)
	l := newLoad(b, 500, slow) // lateness on a busy machine is not an error of redirects
	l.answered(t, 50)
	begun := time.Now()
	out := nodes[0].CLI("--cluster", "reshard", nodes[0].Addr(), "--cluster-from", nodes[0].CLI("CLUSTER", "MYID"),
		"--cluster-to", nodes[1].CLI("CLUSTER", "MYID"), "--cluster-slots", "500", "--cluster-yes", "--cluster-pipeline", "1")
	t.Logf("500 slots moved in %v", time.Since(begun))
	l.answered(t, 50)
	l.end()
	if f := failed(l.answers); len(f) > 0 {
		t.Errorf("of %d calls there failed %v\n%s", len(l.answers), f, out[max(0, len(out)-500):])
	}
	// Each counter has as many hits as were admitted.
	limit := lasting(1e6)
	hits := map[int]uint64{}
	for i := range l.answers {
		hits[i%1000]++
	}
	for key, n := range hits {
		ops := []backend.Op{{Key: keyOf(key), Limits: limit, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}}}
		b.Apply(t.Context(), ops)
		if ops[0].Err != nil || ops[0].Decision.Left != 1e6-n {
			t.Errorf("key %d: %d left, %v; want %d", key, ops[0].Decision.Left, ops[0].Err, 1e6-n)
		}
	}
}

// TestF07_HalfMoved: while a slot is being moved, the destination decides on a counter with one key. A call on a counter whose keys are
// partly moved is retried once and counts nothing; after the move, it is decided. Nodes may omit their own host and those of others.
func TestF07_HalfMoved(t *testing.T) {
	t.Parallel()
	for _, endpoints := range []string{"ip", "unknown-endpoint"} {
		t.Run(endpoints, func(t *testing.T) {
			t.Parallel()
			var config []string
			if endpoints != "ip" {
				config = []string{"cluster-preferred-endpoint-type " + endpoints}
			}
			halfMoved(t, redistest.Cluster(t, 3, config...))
		})
	}
}

func halfMoved(t *testing.T, nodes []*redistest.Server) {
	t.Helper()
	from, to := nodes[0], nodes[1]
	b := run(t, Config{Type: Cluster, URL: from.Addr(), OpTimeout: slow}, true)
	list := engine.Limits{lasting(20)[0], {Algorithm: engine.SlidingWindow, Hits: 30, Window: 7e13, Precision: 10}}
	for i := range list {
		list[i].Listed, list[i].CountRefused = true, false
	}
	op := backend.Op{Take: engine.Take{Cost: 1, Count: 1}}
	slot := int64(1 << 20)
	for key := 0; slot > 5000; key++ { // the first of three masters has such slots
		op.Key = keyOf(key)
		slot = from.Client().ClusterKeySlot(t.Context(), b.main.codec.route(&op)).Val()
	}
	ask := func(limits engine.Limits) backend.Op {
		ops := []backend.Op{op}
		ops[0].Limits = limits
		b.Apply(t.Context(), ops)
		return ops[0]
	}
	there := to.CLI("CLUSTER", "MYID")
	to.CLI("CLUSTER", "SETSLOT", fmt.Sprint(slot), "IMPORTING", from.CLI("CLUSTER", "MYID"))
	from.CLI("CLUSTER", "SETSLOT", fmt.Sprint(slot), "MIGRATING", there)
	for i := range uint64(3) {
		if got := ask(lasting(10)); got.Err != nil || got.Decision.Left != 10-i {
			t.Fatalf("a key on its way: %d left, %v; want %d", got.Decision.Left, got.Err, 10-i)
		}
	}
	to.CLI("CONFIG", "RESETSTAT")
	if got := ask(list); got.Err == nil || !strings.Contains(got.Err.Error(), "TRYAGAIN") {
		t.Fatalf("keys that are nowhere yet: %+v, %v; want TRYAGAIN", got.Decision, got.Err)
	}
	if stats := infoField(to.CLI("INFO", "commandstats"), "cmdstat_eval"); !strings.Contains(stats, "rejected_calls=2,") {
		t.Errorf("%s, want two calls that were rejected", stats)
	}
	for _, s := range nodes[:3] {
		s.CLI("CLUSTER", "SETSLOT", fmt.Sprint(slot), "NODE", there)
	}
	for i := range uint64(3) {
		if got := ask(list); got.Err != nil || got.Decision.Left != 20-3-i {
			t.Errorf("after the slot has arrived: %d left, %v; want %d", got.Decision.Left, got.Err, 20-3-i)
		}
	}
}

// TestClusterWithoutHosts checks that a node that does not report its host, in any form that Redis has for this, is reached at the
// queried host.
func TestClusterWithoutHosts(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "cluster-enabled yes", "bind 127.0.0.1 127.0.0.2")
	if err := s.Client().ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a cluster of one node", func() bool { return strings.Contains(s.CLI("CLUSTER", "INFO"), "cluster_state:ok") })
	found := true // found by go-redis alone
	for endpoints, host := range map[string]string{"ip": `""`, "unknown-endpoint": "", "hostname": "?"} {
		if got := s.CLI("CONFIG", "SET", "cluster-preferred-endpoint-type", endpoints); strings.Contains(got, "Unsupported CONFIG parameter") && endpoints != "ip" {
			continue // Redis 6 has only addresses
		}
		if got := strings.Split(s.CLI("CLUSTER", "SLOTS"), "\n")[2]; got != strings.Trim(host, `"`) {
			t.Fatalf("with %s the host is %q, want %q", endpoints, got, host)
		}
		for _, seed := range []string{"127.0.0.1", "127.0.0.2"} {
			addr := fmt.Sprintf("%s:%d", seed, s.Port())
			found = found && plainHost(t, addr)
			b := run(t, Config{Type: Cluster, URL: addr, OpTimeout: slow}, true)
			if nodes := slices.Collect(maps.Keys(*b.main.cluster.nodes.Load())); len(nodes) != 1 || nodes[0] != addr {
				t.Errorf("with %s the nodes are %q, want %s", endpoints, nodes, addr)
			}
		}
	}
	if found {
		t.Error("go-redis alone finds all nodes: topology.go is not needed")
	}
}

func TestF07_ClusterMasterKilled(t *testing.T) {
	t.Parallel()
	nodes := redistest.Cluster(t, 3)
	var breaker sync.Map // last state by node
	b := run(t, Config{Type: Cluster, URL: nodes[0].Addr(), Observer: remote.Observer{Breaker: func(node, state string) { breaker.Store(node, state) }}}, true)
	l := newLoad(b, 500, usual)
	l.healthy(t)
	redistest.NodeTimeout(nodes, time.Second/2)
	killed := time.Now()
	nodes[1].Kill()
	time.Sleep(100 * time.Millisecond)
	promoted := failover(t, func() bool {
		return slices.ContainsFunc(nodes[3:], (*redistest.Server).IsMaster)
	})
	t.Logf("another master after %v", promoted+100*time.Millisecond)
	decided := 0 // of counters in all shards
	testkit.Eventually(t, "decisions on all shards", func() bool {
		for decided < 100 && oneIn(b, decided, usual).Err == nil {
			decided++
		}
		return decided == 100
	})
	testkit.Eventually(t, "the old master to be gone", func() bool {
		state, _ := breaker.Load(nodes[1].Addr())
		return state == remote.Gone
	})
	time.Sleep(time.Second)
	l.end()
	figure(t, "the gap", recovery(l.answers, killed), 4*time.Second)
	figure(t, "p99", p99(l.answers), 25*time.Millisecond)
	// One shard of three is down; the others continue.
	during := l.between(killed, killed.Add(time.Second/2))
	bad := 0
	for _, n := range failed(during) {
		bad += n
	}
	stood := l.stood(killed, killed.Add(time.Second/2))
	t.Logf("in the first half second %d of %d calls failed; this process stood still for %v of it", bad, len(during), stood)
	if 3*bad > 2*len(during) && stood < 100*time.Millisecond {
		t.Errorf("in the first half second %d of %d calls failed; two shards of three are up", bad, len(during))
	}
}

func TestF06_SentinelFailover(t *testing.T) {
	t.Parallel()
	w := redistest.StartWatched(t)
	master, replica, all := w.Master, w.Replica, w.Sentinels
	var e events
	b := run(t, Config{Type: Sentinel, URL: w.URL(), Observer: remote.Observer{Event: e.observe}}, true)
	for round, fault := range []struct {
		name        string
		cause, cure func(now, next *redistest.Server)
	}{
		{"SENTINEL FAILOVER", func(_, _ *redistest.Server) {
			testkit.Eventually(t, "a replica that the sentinel takes", func() bool { return all[0].CLI("SENTINEL", "FAILOVER", redistest.MasterName) == "OK" })
		}, func(_, _ *redistest.Server) {}},
		{"SIGSTOP", func(now, _ *redistest.Server) { now.Stop() }, func(now, _ *redistest.Server) { now.Cont() }},
		{"SIGKILL", func(now, _ *redistest.Server) { now.Kill() }, func(_, _ *redistest.Server) {}},
	} {
		l := newLoad(b, 500, usual)
		l.healthy(t)
		begun := time.Now()
		fault.cause(master, replica)
		redistest.Down(all, redistest.MasterName, time.Second/2)
		failover(t, replica.IsMaster)
		redistest.Down(all, redistest.MasterName, testkit.Patience)
		t.Logf("%s: another master after %v", fault.name, time.Since(begun))
		testkit.Eventually(t, "a decision", func() bool { return one(b, 1).Err == nil })
		time.Sleep(1500 * time.Millisecond)
		l.end()
		figure(t, fault.name+": errors end", recovery(l.answers, begun), 3*time.Second)
		f := failed(l.answers)
		t.Logf("%s: of %d calls there failed %v", fault.name, len(l.answers), f)
		if f[ClassNoScript] > 0 {
			t.Errorf("%s: NOSCRIPT reached %d callers", fault.name, f[ClassNoScript])
		}
		fault.cure(master, replica)
		master, replica = replica, master
		if round < 2 {
			redistest.AwaitSentinels(all, redistest.MasterName, 1)
			testkit.Eventually(t, "the old master to follow the new one", replica.InStep)
		}
	}
	if e.count(EventDataChanged) < 3 || e.count(EventMasterChanged) < 3 {
		t.Errorf("%d events of another data set and %d of another master, want one at least for each round",
			e.count(EventDataChanged), e.count(EventMasterChanged))
	}
}
