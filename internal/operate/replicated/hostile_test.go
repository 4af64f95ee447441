package replicated_test

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// logging returns a replica with a log and heartbeats.
func logging(t *testing.T, db *redistest.Server) (*replicated.Register, *words, *testkit.Buffer) {
	t.Helper()
	table, log := newWords(), new(testkit.Buffer)
	r := replicated.New(replicated.Config{
		Table: table, Store: open(t, db.Addr()), What: "words", Failed: errFailed,
		Log: slog.New(slog.NewTextHandler(log, nil)), Status: func() string { return "well" },
	})
	testkit.Run(t, r.Run)
	<-r.First()
	return r, table, log
}

// open returns the register in Redis.
func open(t *testing.T, addr string) *replicated.ScriptStore {
	t.Helper()
	b, err := redis.New(redis.Config{URL: addr, OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	return replicated.NewScriptStore(b.SideChannel("words", replicated.Script), 100)
}

// write stores an entry with its own time, like a server with another clock, or another program.
func write(t *testing.T, store *replicated.ScriptStore, e replicated.Entry) {
	t.Helper()
	testkit.Eventually(t, "an entry can be written", func() bool {
		c, err := store.Changes(t.Context(), replicated.Revision{}, "")
		for err == nil && c.More {
			c, err = store.Changes(t.Context(), c.Revision, "")
		}
		if err == nil {
			_, err = store.Put(t.Context(), c.Revision, []replicated.Entry{e}, false)
		}
		return err == nil
	})
}

// TestClockBehind: a change is later than everything its replica knows, including entries from a clock that was ahead. So no replica
// reverts it.
func TestClockBehind(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(testing.TB, *redistest.Server){
		"an empty store takes over": func(_ testing.TB, db *redistest.Server) { db.CLI("FLUSHALL") },
		"its clock is set back":     func(testing.TB, *redistest.Server) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			r, table := replica(t, db.Addr())
			_, other := replica(t, db.Addr())
			ends := time.Now().Add(time.Hour).UnixMilli()
			write(t, open(t, db.Addr()), replicated.Entry{Key: "a", Text: "old", Created: time.Now().Add(30 * time.Second).UnixMicro(), Expires: ends})
			agree(t, map[string]string{"a": "old"}, table, other)
			change(t, db)
			put(t, r, "a", "new", time.UnixMilli(ends))
			want := map[string]string{"a": "new"}
			agree(t, want, table, other)
			_, late := replica(t, db.Addr())
			agree(t, want, late)
			if !maps.Equal(table.texts(), want) || !maps.Equal(other.texts(), want) {
				t.Errorf("the change was undone: %v, %v", table.texts(), other.texts())
			}
		})
	}
}

// sent returns the number of bytes that Redis has sent.
func sent(t *testing.T, db *redistest.Server) (n int) {
	t.Helper()
	for line := range strings.Lines(db.CLI("INFO", "stats")) {
		if rest, ok := strings.CutPrefix(line, "total_net_output_bytes:"); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}

// TestHuge: values of excessive size in the register are not sent, are logged once, and are replaced from replicas.
func TestHuge(t *testing.T) {
	t.Parallel()
	const size = 16 << 20
	huge := strings.Repeat("x", size)
	for name, write := range map[string]func(*goredis.Client) (said string){
		"an entry": func(c *goredis.Client) string {
			c.HSet(t.Context(), "rl:{words}:entries", "a", "9 0 "+huge)
			return "rl:{words}:entries a"
		},
		"the head": func(c *goredis.Client) string {
			c.HSet(t.Context(), "rl:{words}:entries", "", huge)
			return ""
		},
		"a key": func(c *goredis.Client) string {
			_, _ = c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
				p.ZAdd(t.Context(), "rl:{words}:changed", goredis.Z{Score: 3, Member: huge})
				p.HSet(t.Context(), "rl:{words}:entries", "", "3 T 3 0")
				return nil
			})
			return "rl:{words}:entries x"
		},
		"the name of a replica": func(c *goredis.Client) string {
			c.ZAdd(t.Context(), "rl:{words}:here", goredis.Z{Score: 9e15, Member: huge})
			return "rl:{words}:here"
		},
		"names of replicas": func(c *goredis.Client) string {
			c.Eval(t.Context(), "for i = 1, 200000 do redis.call('ZADD', KEYS[1], 9e15, 'name ' .. i) end", []string{"rl:{words}:here"})
			return "rl:{words}:here"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			r, table, log := logging(t, db)
			put(t, r, "a", "one", time.Time{})
			put(t, r, "b", "two", time.Time{})
			client := db.Client()
			said := write(client)
			before := sent(t, db)
			_, late, lateLog := logging(t, db)
			count := func() int {
				_, _ = r.Replicas(t.Context()) // like servers
				return strings.Count(log.String()+lateLog.String(), said)
			}
			if said != "" {
				testkit.Eventually(t, "it is said", func() bool {
					return testkit.Poll(5*time.Second, func() bool { return count() > 0 }) || write(client) == "" // the answer was late
				})
			}
			put(t, r, "a", "three", time.Time{}) // overwrites it
			agree(t, map[string]string{"a": "three", "b": "two"}, table, late)
			testkit.Eventually(t, "all replicas are here", func() bool { all, err := r.Replicas(t.Context()); return err == nil && len(all) == 2 })
			if n := sent(t, db) - before; n > size/2 {
				t.Errorf("Redis has sent %d bytes", n)
			}
			if n := count(); said != "" && n > 2 {
				t.Errorf("it is said %d times:\n%s%s", n, log, lateLog)
			}
		})
	}
}

// TestRepaired: invalid values and earlier entries in place of an entry that a replica knows are replaced by it.
func TestRepaired(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]replicated.Entry{
		"earlier": {Key: "a", Text: "earlier", Created: 1}, "too large": {Key: "a", Text: strings.Repeat("x", 40_000), Created: 1 << 60},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			r, table := replica(t, db.Addr())
			put(t, r, "a", "one", time.Time{})
			write(t, open(t, db.Addr()), e)
			want := map[string]string{"a": "one"}
			testkit.Eventually(t, "it is replaced", func() bool {
				c, err := open(t, db.Addr()).Changes(t.Context(), replicated.Revision{}, "")
				return err == nil && len(c.Entries) == 1 && c.Entries[0].Text == "one"
			})
			agree(t, want, table)
		})
	}
}

// TestTooMany: more entries than servers write are not read, and the error names their key.
func TestTooMany(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r, _, log := logging(t, db)
	put(t, r, "a", "one", time.Time{})
	db.CLI("EVAL", "for i = 1, 1000 do redis.call('ZADD', KEYS[1], i, 'k' .. i); redis.call('HSET', KEYS[2], 'k' .. i, '1 0 x') end "+
		"redis.call('HSET', KEYS[2], '', '1000 T 1001 0')", "2", "rl:{words}:changed", "rl:{words}:entries")
	testkit.Eventually(t, "it is said", func() bool {
		return strings.Contains(log.String(), "rl:{words}:changed has more than 300 entries, which no server wrote: delete rl:{words}:entries")
	})
	_, late := replica(t, db.Addr())
	if n := len(late.Keys()); n > 0 {
		t.Errorf("%d of them are read", n)
	}
	db.CLI("DEL", "rl:{words}:entries")
	agree(t, map[string]string{"a": "one"}, late)
}

// TestHugeSecret: a secret of excessive size is not sent.
func TestHugeSecret(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	store := open(t, db.Addr())
	if secret, err := store.Secret(t.Context(), []byte("mine")); err != nil || string(secret) != "mine" {
		t.Errorf("the secret is %q, %v", secret, err)
	}
	db.CLI("SETRANGE", "rl:{words}:secret", "1000000", "x")
	if _, err := store.Secret(t.Context(), []byte("mine")); err == nil || !strings.Contains(err.Error(), "rl:{words}:secret was not written by a server: delete it") {
		t.Errorf("a secret that is too large: %v", err)
	}
}

// TestLargest: numbers and times of another program so high that no later ones exist are ignored, so changes reach all replicas and
// stay.
func TestLargest(t *testing.T) {
	t.Parallel()
	const changed, entries = "rl:{words}:changed", "rl:{words}:entries"
	for name, spoil := range map[string]func(c *goredis.Client, tag string){
		"the last number": func(c *goredis.Client, tag string) {
			c.HSet(t.Context(), entries, "", "9007199254740992 "+tag+" 1 0")
		},
		"a number of 400 digits": func(c *goredis.Client, tag string) {
			c.HSet(t.Context(), entries, "", strings.Repeat("9", 400)+" "+tag+" 1 0")
		},
		"the number of a key": func(c *goredis.Client, _ string) {
			c.ZAdd(t.Context(), changed, goredis.Z{Score: 1e18, Member: "a"})
		},
		"an infinite number of a key": func(c *goredis.Client, _ string) {
			c.ZAdd(t.Context(), changed, goredis.Z{Score: math.Inf(1), Member: "a"})
		},
		"the time of an entry": func(c *goredis.Client, tag string) {
			_, _ = c.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
				p.HSet(t.Context(), entries, "a", "9223372036854775807 0 theirs", "", "2 T2 1 0")
				p.ZAdd(t.Context(), changed, goredis.Z{Score: 2, Member: "a"})
				p.ZAdd(t.Context(), "rl:{words}:tags", goredis.Z{Score: 1, Member: tag}, goredis.Z{Score: 2, Member: "T2"})
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			r, table := replica(t, db.Addr())
			_, other := replica(t, db.Addr())
			put(t, r, "a", "one", time.Time{})
			agree(t, map[string]string{"a": "one"}, table, other)
			client := db.Client()
			spoil(client, strings.Fields(client.HGet(t.Context(), entries, "").Val())[1])
			testkit.Poll(time.Second, func() bool { return false }) // both have read it
			put(t, r, "a", "two", time.Time{})
			agree(t, map[string]string{"a": "two"}, table, other)
			if sync := r.Sync(t.Context()); sync != nil || table.texts()["a"] != "two" {
				t.Errorf("afterwards: %v, %v", sync, table.texts())
			}
		})
	}
}
