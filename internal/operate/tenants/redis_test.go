package tenants

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// replica returns the table of one process on Redis, until the test ends.
func replica(t *testing.T, c redis.Config) *Tenants {
	t.Helper()
	c.KeyPrefix, c.OpTimeout, c.DialTimeout = "test:", 10*time.Second, 10*time.Second
	b, err := redis.New(c)
	if err != nil {
		t.Fatal(err)
	}
	store := replicated.NewScriptStore(b.SideChannel("tenants", replicated.Script), MaxTenants)
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	v := New(Config{Store: store, Log: slog.New(slog.DiscardHandler)})
	testkit.Run(t, v.Run)
	<-v.First()
	return v
}

// on waits until a tenant is on a plan in all replicas; empty means none.
func on(t *testing.T, all []*Tenants, name, plan string) {
	t.Helper()
	for i, v := range all {
		var e plans.Entry
		took := testkit.Eventually(t, fmt.Sprintf("%s is on %q in replica %d", name, plan, i), func() bool {
			e, _ = v.Plans().Load().Find([]byte(name))
			return e.Plan == plan
		})
		t.Logf("%s is on %q in replica %d after %v", name, plan, i, took)
	}
}

// put changes a tenant as soon as Redis answers; an empty plan removes it.
func put(t *testing.T, v *Tenants, name, plan string) (before *plans.Entry) {
	t.Helper()
	change := Change{Tenant: name}
	if plan != "" {
		change.Entry = &plans.Entry{Plan: plan}
	}
	var err error
	testkit.Eventually(t, "a tenant can be changed", func() bool {
		var was []*plans.Entry
		if was, err = v.Put(t.Context(), []Change{change}, false); err == nil {
			before = was[0]
		}
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	return before
}

// TestRedis: replicas share a table in Redis, which survives failures of Redis.
func TestRedis(t *testing.T) {
	t.Parallel()
	// The second replica has only the permissions that docs/redis.md lists for counters.
	db := redistest.Start(t, "user limiter on >secret ~test:rl:* +eval +evalsha +info +get +mget +set +setrange +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush +hdel +hmget +hset +hstrlen +strlen "+
		"+zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore")
	all := []*Tenants{replica(t, redis.Config{URL: db.Addr()}), replica(t, redis.Config{URL: db.Addr(), Auth: "limiter:secret"})}
	if was := put(t, all[0], "ann", "gold"); was != nil {
		t.Errorf("ann was %v before", was)
	}
	on(t, all, "ann", "gold")
	if was := put(t, all[1], "ann", "silver"); was == nil || was.Plan != "gold" {
		t.Errorf("ann was %v before", was)
	}
	put(t, all[1], "bob", "gold")
	on(t, all, "ann", "silver")
	on(t, all, "bob", "gold")
	put(t, all[0], "bob", "")
	on(t, all, "bob", "")
	if was := put(t, all[0], "bob", ""); was != nil {
		t.Errorf("bob was %v before", was)
	}

	// A new replica reads the whole table in parts.
	var many []Change
	for i := range 2*MaxAtOnce + 7 {
		many = append(many, Change{Tenant: fmt.Sprint("t", i), Entry: &plans.Entry{Plan: "free", Requests: uint64(i), Numbered: true, Until: time.Unix(1<<33, 0)}})
	}
	for i := 0; i < len(many); i += MaxAtOnce {
		if _, err := all[0].Put(t.Context(), many[i:min(i+MaxAtOnce, len(many))], false); err != nil {
			t.Fatal(err)
		}
	}
	all = append(all, replica(t, redis.Config{URL: db.Addr()}))
	for i, v := range all {
		testkit.Eventually(t, "all tenants are known", func() bool { return v.Len(plans.Store) == len(many)+1 })
		if e, from := v.Plans().Load().Find([]byte("t1006")); from != plans.Store || e != *many[1006].Entry {
			t.Errorf("replica %d has t1006 on %v", i, e.String())
		}
	}

	// Data that Redis loses is restored: everything, one of the keys, or after a restart. Tenants keep their plans in the
	// meantime.
	for i, lose := range []func(){
		func() { db.CLI("FLUSHALL") },
		func() { db.CLI("DEL", "test:rl:{tenants}:entries") },
		func() { db.CLI("DEL", "test:rl:{tenants}:changed") },
		func() { db.CLI("DEL", "test:rl:{tenants}:ends") },
		func() { db.CLI("DEL", "test:rl:{tenants}:tags") },
		db.Restart,
	} {
		lose()
		put(t, all[0], "cid", fmt.Sprint("plan", i))
		on(t, all, "cid", fmt.Sprint("plan", i))
		on(t, append(all, replica(t, redis.Config{URL: db.Addr()})), "ann", "silver")
		for _, v := range all {
			testkit.Eventually(t, "all tenants are known", func() bool { return v.Len(plans.Store) == len(many)+2 })
		}
	}

	// While Redis is down, the last known table applies.
	db.Kill()
	if _, err := all[0].Put(t.Context(), []Change{{Tenant: "ann"}}, false); err == nil {
		t.Error("a change is taken without Redis")
	}
	on(t, all, "ann", "silver")

	// A value that no script wrote is ignored, and hides no others.
	db.Restart()
	put(t, all[0], "dan", "gold")
	on(t, all, "dan", "gold")
	db.CLI("HSET", "test:rl:{tenants}:entries", "dan", "1 0 gar bage")
	late := replica(t, redis.Config{URL: db.Addr()})
	testkit.Eventually(t, "all others are known", func() bool { return late.Len(plans.Store) >= len(many)+2 })
	on(t, []*Tenants{late}, "dan", "")
	on(t, []*Tenants{late}, "ann", "silver")
}

// TestTakenAway: a replica that was disconnected does not restore a removed tenant, even if Redis has lost everything.
func TestTakenAway(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	proxy := testkit.NewProxy(t, db.Addr())
	near, far := replica(t, redis.Config{URL: db.Addr()}), replica(t, redis.Config{URL: proxy.Addr()})
	all := []*Tenants{near, far}
	put(t, near, "ann", "gold")
	put(t, near, "bob", "gold")
	on(t, all, "bob", "gold")
	away := func(yes bool) {
		proxy.Target(map[bool]string{true: "127.0.0.1:1", false: db.Addr()}[yes])
		proxy.Cut()
	}
	away(true)
	put(t, near, "ann", "")
	db.CLI("FLUSHALL")
	away(false)
	on(t, all, "ann", "")
	on(t, append(all, replica(t, redis.Config{URL: db.Addr()})), "bob", "gold")
}

// TestStoreUnread: until the store has answered, its tenants are unknown, which differs from having none.
func TestStoreUnread(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	proxy := testkit.NewProxy(t, db.Addr())
	proxy.Target("127.0.0.1:1")
	proxy.Cut()
	var log testkit.Buffer
	b, err := redis.New(redis.Config{URL: proxy.Addr(), KeyPrefix: "test:"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	v := New(Config{Store: replicated.NewScriptStore(b.SideChannel("tenants", replicated.Script), MaxTenants), Log: slog.New(slog.NewTextHandler(&log, nil))})
	testkit.Run(t, v.Run)
	testkit.Eventually(t, "the log says it", func() bool { return strings.Contains(log.String(), "its tenants are unknown") }, log.String)
	if strings.Contains(log.String(), "tenants=0") || v.StoreRead() {
		t.Errorf("read: %t; log:\n%s", v.StoreRead(), log.String())
	}
	proxy.Target(db.Addr())
	testkit.Eventually(t, "the tenants are known", v.StoreRead)
}

// TestList lists each tenant of both sources once.
func TestList(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	v := replica(t, redis.Config{URL: db.Addr()})
	v.config.Files = true
	var file []byte
	for i := range 3000 {
		file = fmt.Appendf(file, "t%d,gold\n", i)
	}
	if err := v.Load([]Input{{Name: "f", Reader: bytes.NewReader(file)}}); err != nil {
		t.Fatal(err)
	}
	put(t, v, "t7", "silver")
	seen, page := map[string]int{}, ""
	for {
		all, next, err := v.List(page, 100, func(*Listed) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			seen[l.Tenant+" "+l.Source.String()]++
		}
		if page = next; page == "" {
			break
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s is listed %d times", name, n)
		}
	}
	if len(seen) != 3001 || seen["t7 Redis"] != 1 || seen["t7 TENANTS_FILE"] != 1 {
		t.Errorf("%d are listed, want 3001", len(seen))
	}
	if _, _, err := v.List("12345678-1-0-7", 1, nil); err == nil {
		t.Error("the page of another server is taken")
	}
	if e, from := v.Plans().Load().Find([]byte("t7")); from != plans.Store || e.Plan != "silver" {
		t.Errorf("t7 is on %v by %v: want Redis to go first", e.String(), from)
	}
}
