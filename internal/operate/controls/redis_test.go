package controls

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// replica returns the controls of one process on Redis, until the test ends.
func replica(t *testing.T, c redis.Config) *Controls {
	t.Helper()
	return logged(t, c, io.Discard)
}

// logged returns a replica with a log.
func logged(t *testing.T, c redis.Config, log io.Writer) *Controls {
	t.Helper()
	v := start(t, c, log)
	<-v.First()
	return v
}

// start returns a replica that may not be synchronized yet.
func start(t *testing.T, c redis.Config, log io.Writer) *Controls {
	t.Helper()
	c.KeyPrefix, c.DialTimeout = "test:", 10*time.Second
	b, err := redis.New(c)
	if err != nil {
		t.Fatal(err)
	}
	store := replicated.NewScriptStore(b.SideChannel("controls", replicated.Script), MaxKept)
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	v := New(Config{Store: store, Log: slog.New(slog.NewTextHandler(log, nil))})
	testkit.Run(t, v.Run)
	return v
}

// obey waits until controls for a descriptor have this text; empty means none.
func obey(t *testing.T, all []*Controls, descriptor, text string) {
	t.Helper()
	for i, c := range all {
		took := testkit.Eventually(t, fmt.Sprintf("replica %d obeys %q", i, text), func() bool {
			kind := ""
			if table := c.Overrides().Load(); table != nil {
				if f := table.Find([]byte("shop"), entriesOf(parse("block x "+descriptor))); f != nil {
					kind = f[0].Kind.String()
				}
			}
			return kind == text
		})
		t.Logf("replica %d obeys %q after %v", i, text, took)
	}
}

// eventually sets a control as soon as Redis answers.
func eventually(t *testing.T, c *Controls, text string) {
	t.Helper()
	var err error
	testkit.Eventually(t, "a control can be set", func() bool {
		_, err = c.Set(t.Context(), parse(text), time.Hour, false)
		return err == nil
	}, func() string { return fmt.Sprint(err) })
}

func TestRedis(t *testing.T) {
	t.Parallel()
	// The second replica has only the permissions that docs/redis.md lists for counters.
	db := redistest.Start(t, "user limiter on >secret ~test:rl:* +eval +evalsha +info +get +mget +set +setrange +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush +hdel +hmget +hset +hstrlen +strlen "+
		"+zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore")
	all := []*Controls{replica(t, redis.Config{URL: db.Addr()}), replica(t, redis.Config{URL: db.Addr(), Auth: "limiter:secret"})}
	a := set(t, all[0], "block shop a=1", time.Hour)
	set(t, all[1], "allow shop b=1", time.Hour)
	obey(t, all, "a=1", "block")
	obey(t, all, "b=1", "allow")
	if ttl := db.CLI("PTTL", "test:rl:{controls}:entries"); ttl != "-1" {
		t.Errorf("controls in Redis expire after %s ms", ttl)
	}
	if r := all[0].Reach(t.Context()); len(r.Replicas) != 2 || r.Unshared != "" {
		t.Errorf("they are for %+v, want 2 replicas", r)
	}

	// A new replica knows the controls before its first request.
	all = append(all, replica(t, redis.Config{URL: db.Addr()}))
	obey(t, all[2:], "a=1", "block")

	// Other replicas can lift a control and set it again.
	if _, err := all[2].Lift(t.Context(), []string{a.ID}, false); err != nil {
		t.Fatal(err)
	}
	obey(t, all, "a=1", "")
	set(t, all[1], "block shop a=1", time.Hour)
	obey(t, all, "a=1", "block")

	// Data that Redis loses is restored: everything, one of the keys, or after a restart.
	for _, lose := range []func(){
		func() { db.CLI("FLUSHALL") },
		func() { db.CLI("DEL", "test:rl:{controls}:entries") },
		func() { db.CLI("DEL", "test:rl:{controls}:changed") },
		func() { db.CLI("DEL", "test:rl:{controls}:ends") },
		func() { db.CLI("DEL", "test:rl:{controls}:tags") },
		db.Restart,
	} {
		lose()
		eventually(t, all[0], "block shop c=1")
		obey(t, all, "c=1", "block")
		obey(t, all, "a=1", "block")
		obey(t, all, "b=1", "allow")
		testkit.Eventually(t, "Redis has all", func() bool {
			return strings.Count(db.CLI("HVALS", "test:rl:{controls}:entries"), `"kind"`) == 3 // lifted controls have no kind
		})
		late := replica(t, redis.Config{URL: db.Addr()})
		obey(t, []*Controls{late}, "a=1", "block")
		obey(t, []*Controls{late}, "b=1", "allow")
		for _, c := range all[0].List(t.Context()) {
			if c.Text() == "shop c=1" {
				if _, err := all[0].Lift(t.Context(), []string{c.ID}, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		obey(t, all, "c=1", "")
	}

	// A value that no script wrote is ignored, hides no others, and is overwritten.
	for i, text := range []string{"garbage", "1 2", "1 x {}", "9 99999999999999 {"} {
		db.CLI("HSET", "test:rl:{controls}:entries", keyOf(a), text)
		late := replica(t, redis.Config{URL: db.Addr()})
		obey(t, []*Controls{late}, "b=1", "allow") // initially, unless the machine is too busy to ask Redis in time
		set(t, late, "block shop a=1", time.Hour+time.Duration(i)*time.Minute)
		obey(t, append(all, late), "a=1", "block")
	}

	// A replica that starts while Redis is read-only knows the controls too.
	db.CLI("CONFIG", "SET", "min-replicas-to-write", "1")
	var log testkit.Buffer
	late := logged(t, redis.Config{URL: db.Addr()}, &log)
	obey(t, []*Controls{late}, "a=1", "block")
	if _, err := late.Set(t.Context(), parse("block shop d=1"), time.Hour, false); err == nil || !strings.Contains(err.Error(), "asking the backend for controls") {
		t.Errorf("setting a control in a Redis that takes no writes: %v", err)
	}
	testkit.Eventually(t, "the log says so", func() bool { return strings.Contains(log.String(), "cannot sync with Redis") })
	db.CLI("CONFIG", "SET", "min-replicas-to-write", "0")
	eventually(t, late, "block shop d=1")
	obey(t, all, "d=1", "block")

	// While Redis is down, the last known controls apply, and none can be set.
	db.Kill()
	if _, err := all[0].Set(t.Context(), parse("block shop d=1"), time.Hour, false); err == nil || !strings.Contains(err.Error(), "asking the backend for controls") {
		t.Errorf("setting a control without Redis: %v", err)
	}
	obey(t, all, "a=1", "block")
	if r := all[0].Reach(t.Context()); len(r.Replicas) != 0 || len(all[0].List(t.Context())) != 3 {
		t.Errorf("without Redis they are for %+v", r)
	}
}

// many puts n blocks in force at once, and returns their IDs.
func many(t *testing.T, c *Controls, key string, n int, span time.Duration) (ids []string) {
	t.Helper()
	var blocks []replicated.Entry
	for i := range n {
		w := parse(fmt.Sprintf("block shop %s=%d", key, i))
		w.ID, w.Since, w.Until = newID(), time.Now(), time.Now().Add(span)
		e, err := entryOf(w)
		if err != nil {
			t.Fatal(err)
		}
		blocks, ids = append(blocks, e), append(ids, w.ID)
	}
	var err error
	testkit.Eventually(t, "they are put in force", func() bool { // retries if Redis took too long
		err = c.register.Put(t.Context(), func() ([]replicated.Entry, error) { return slices.Clone(blocks), nil })
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	return ids
}

func lift(t *testing.T, c *Controls, ids ...string) {
	t.Helper()
	if _, err := c.Lift(t.Context(), ids, false); err != nil {
		t.Fatal(err)
	}
}

// count returns the number of elements in one of the controls' keys.
func count(t *testing.T, db *redistest.Server, key string) int {
	t.Helper()
	n, err := strconv.Atoi(db.CLI("ZCARD", "test:rl:{controls}"+key))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestLiftedStays: a replica that was disconnected does not restore controls that were lifted or replaced in the meantime, even if
// Redis has lost everything and this replica is the first to restore it. When all have expired, Redis forgets them.
func TestLiftedStays(t *testing.T) {
	t.Parallel()
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			proxies := []*testkit.Proxy{testkit.NewProxy(t, db.Addr()), testkit.NewProxy(t, db.Addr())}
			away := func(i int) { proxies[i].Target("127.0.0.1:1"); proxies[i].Cut() }
			near, far := replica(t, redis.Config{URL: proxies[0].Addr()}), replica(t, redis.Config{URL: proxies[1].Addr()})
			all := []*Controls{near, far}
			kept := set(t, near, "block shop kept=1", time.Hour)
			lifted := set(t, near, "block shop lifted=1", time.Hour)
			set(t, near, "block shop replaced=1", time.Hour)
			obey(t, all, "replaced=1", "block")
			away(1)
			lift(t, near, lifted.ID)
			set(t, near, "block shop replaced=1", time.Second)
			for i := range 12 {
				lift(t, near, many(t, near, fmt.Sprint("gone", i), 100, time.Hour)...)
			}
			obey(t, all[:1], "replaced=1", "")
			obey(t, all[1:], "replaced=1", "block")
			if lost { // the disconnected replica reconnects first
				away(0)
				db.CLI("FLUSHALL")
				proxies[1].Target(db.Addr())
				testkit.Eventually(t, "what was lifted is in Redis again", func() bool { return count(t, db, ":changed") == 3 })
				proxies[0].Target(db.Addr())
			}
			proxies[1].Target(db.Addr())
			obey(t, all, "lifted=1", "")
			obey(t, all, "replaced=1", "")
			late := replica(t, redis.Config{URL: db.Addr()})
			for _, c := range append(all, late) {
				testkit.Eventually(t, "the other stays in force", func() bool { return len(c.List(t.Context())) == 1 })
				obey(t, []*Controls{c}, "kept=1", "block")
			}
			testkit.Eventually(t, "Redis has all", func() bool { return count(t, db, ":changed") == 1203 })
			lift(t, far, kept.ID)
			obey(t, append(all, late), "kept=1", "")

			many(t, near, "ended", 100, -2*time.Minute) // ended long ago
			testkit.Eventually(t, "Redis forgets what has ended", func() bool {
				set(t, near, "block shop kept=2", time.Hour)
				return count(t, db, ":changed") == 1204
			})
		})
	}
}

// TestHangingStore: controls expire on time, by the clock of Redis, while Redis hangs.
func TestHangingStore(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	c := replica(t, redis.Config{URL: db.Addr(), OpTimeout: 5 * time.Second})
	for i := range 4 {
		w := set(t, c, "block shop a=1", time.Second+time.Duration(i)*300*time.Millisecond) // at different times of a call
		db.Stop()
		testkit.Eventually(t, "it ends", func() bool { return c.Overrides().Load() == nil })
		late := time.Since(w.Until)
		db.Cont()
		if late < -50*time.Millisecond || late > 400*time.Millisecond {
			t.Errorf("it ended %v after its end", late)
		}
	}
}

// TestTwins: replicas that set the same block concurrently create one control, with the same ID on all of them.
func TestTwins(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	all := []*Controls{replica(t, redis.Config{URL: db.Addr()}), replica(t, redis.Config{URL: db.Addr()})}
	for range 5 {
		var both sync.WaitGroup
		for _, c := range all {
			both.Go(func() { eventually(t, c, "block shop a=1") })
		}
		both.Wait()
		testkit.Eventually(t, "both have the same one", func() bool {
			one, other := all[0].List(t.Context()), all[1].List(t.Context())
			return len(one) == 1 && len(other) == 1 && one[0].ID == other[0].ID
		})
		lift(t, all[1], all[0].List(t.Context())[0].ID)
		obey(t, all, "a=1", "")
	}
}
