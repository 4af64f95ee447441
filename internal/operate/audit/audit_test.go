package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// methods returns the methods of the acts that a process knows, latest first.
func methods(t *testing.T, l *Log) (all []string) {
	t.Helper()
	acts, complete := l.Acts(t.Context())
	for _, a := range acts {
		all = append(all, a.Method)
	}
	if !complete {
		all = append(all, "and what others know")
	}
	return all
}

// TestActs: the last 1,000 acts are kept, latest first.
func TestActs(t *testing.T) {
	t.Parallel()
	l := New(nil, quiet())
	for i := range MaxActs + 100 {
		l.Add(t.Context(), &Act{Method: fmt.Sprint(i)})
	}
	got := methods(t, l)
	if len(got) != MaxActs || got[0] != fmt.Sprint(MaxActs+99) || got[MaxActs-1] != "100" {
		t.Errorf("%d acts are kept, from %s to %s", len(got), got[0], got[len(got)-1])
	}
}

// TestSizes: acts are small for any call, and cuts are marked.
func TestSizes(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é\x01", 1500)
	for name, a := range map[string]*Act{
		"everything": {
			Method: "Block", RequestID: long[:128], By: long, From: long, Domain: []byte(long), What: long, Reason: long, Before: long, After: long, Why: long,
			Entries: slices.Repeat([][2][]byte{{[]byte(long), []byte(long)}}, 256),
		},
		"a domain":          {Domain: bytes.Repeat([]byte{0xff}, 5000)},
		"an entry":          {Entries: [][2][]byte{{[]byte("key"), []byte(long)}}},
		"two entries":       {Entries: [][2][]byte{{[]byte("key"), []byte(long)}, {[]byte("k"), []byte(long)}}},
		"many entries":      {Entries: slices.Repeat([][2][]byte{{[]byte("k"), []byte("v")}}, 256)},
		"empty entries":     {Entries: make([][2][]byte, 256)},
		"a reason":          {Reason: strings.Repeat("\u2028<", 2000)},
		"one that is small": {Method: "Block", Reason: "INC-1"},
	} {
		l := New(nil, quiet())
		l.Add(t.Context(), a)
		encoded, _ := json.Marshal(l.own[0])
		text := string(encoded)
		cut := strings.Contains(fmt.Sprintf("%s", *a), cutMark)
		if len(text) > maxText || cut != (name != "one that is small") {
			t.Errorf("%s: %d bytes, cut is %t: %s", name, len(text), cut, text)
		}
		if name == "one that is small" && (a.Reason != "INC-1" || a.Method != "Block") {
			t.Errorf("a small act was cut: %s", text)
		}
	}
}

// TestFailures: failed calls are counted for 64 callers and for all others together, and logged once a minute for each
// caller.
func TestFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(nil, quiet())
		logs := 0
		fail := func(by, from string) {
			if _, ok := l.Fail(by, from, "Reset", "PermissionDenied"); ok {
				logs++
			}
			time.Sleep(time.Millisecond)
		}
		for range 800 {
			fail("sam", "10.0.0.1:1234")
		}
		for i := range 1000 {
			fail("", fmt.Sprintf("[2001:db8:0:%x:%x::1]:99", i, i))
		}
		all := l.Failures()
		if len(all) != maxCallers+1 || all[0].By != others || all[0].Count != 1000-maxCallers+1 {
			t.Errorf("%d callers, the latest %+v; want 64, and the others", len(all), all[0])
		}
		if i := slices.IndexFunc(all, func(r Failed) bool { return r.By == "sam" }); i < 0 || all[i].Count != 800 || all[i].From != "10.0.0.1" || all[i].Last.Sub(all[i].First) < 700*time.Millisecond {
			t.Errorf("calls of one caller: %+v", all)
		}
		if logs != maxCallers+1 {
			t.Errorf("%d lines, want one for each caller", logs)
		}
		time.Sleep(time.Minute)
		fail("sam", "10.0.0.1:1234")
		if logs != maxCallers+2 {
			t.Error("a caller's calls are not logged again after a minute")
		}
		time.Sleep(25 * time.Hour)
		fail("ann", "10.0.0.2:1")
		if all = l.Failures(); all[0].By != "ann" || len(all) != 2 {
			t.Errorf("a day later there are %d callers, the latest %+v", len(all), all[0])
		}
		for i := range 1000 { // available to one machine
			fail("", fmt.Sprintf("[2001:db8::%x]:99", i))
		}
		if all = l.Failures(); len(all) != 3 || all[0].From != "2001:db8::/64" || all[0].Count != 1000 {
			t.Errorf("calls from addresses of one network: %d callers, the latest %+v", len(all), all[0])
		}
	})
}

// acts returns the side channel to a Redis.
func acts(t *testing.T, db *redistest.Server) *redis.SideChannel {
	t.Helper()
	b, err := redis.New(redis.Config{URL: db.Addr(), KeyPrefix: "test:", OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b.SideChannel("audit", Script)
}

// replica returns a Log on a Redis.
func replica(t *testing.T, db *redistest.Server) *Log {
	t.Helper()
	store := acts(t, db)
	l := New(ScriptStore{store}, quiet())
	testkit.Run(t, func(ctx context.Context) error {
		defer store.Close()
		return l.Run(ctx)
	})
	return l
}

// TestRedis: all replicas know all acts. Redis keeps at most 1,000 acts in a megabyte, and receives acts later that it did not accept.
func TestRedis(t *testing.T) {
	t.Parallel()
	const ids, texts = "test:rl:{audit}:ids", "test:rl:{audit}:acts"
	db := redistest.Start(t)
	one, other := replica(t, db), replica(t, db)
	know := func(l *Log, want ...string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("a replica knows of %v", want), func() bool { return slices.Equal(methods(t, l), want) })
	}
	one.Add(t.Context(), &Act{Method: "first"})
	if n := db.CLI("ZCARD", ids); n != "1" {
		t.Errorf("Redis has %s acts once Add has returned, want 1", n)
	}
	other.Add(t.Context(), &Act{Method: "second", Domain: []byte("\xff")})
	know(one, "second", "first")
	know(other, "second", "first")

	one.Add(t.Context(), &Act{Method: "third"})
	if got := methods(t, other); got[0] != "third" {
		t.Errorf("just after another one, a replica does not know of an act: %v", got)
	}

	db.Kill()
	other.Add(t.Context(), &Act{Method: "away"})
	testkit.Eventually(t, "a replica says that it cannot ask Redis", func() bool {
		got := methods(t, other)
		return got[0] == "away" && got[len(got)-1] == "and what others know"
	})
	db.Restart()
	know(one, "away", "third", "first")
	if diff := methods(t, other); diff[0] != "away" {
		t.Errorf("the replica that did it knows of %v", diff)
	}

	large := strings.Repeat("x", 5000)
	for i := range MaxActs + 20 {
		one.Add(t.Context(), &Act{Method: fmt.Sprint(i), Reason: large, Entries: slices.Repeat([][2][]byte{{[]byte(large), []byte(large)}}, 8)})
	}
	testkit.Eventually(t, "Redis has the last 1,000", func() bool { return db.CLI("ZCARD", ids) == fmt.Sprint(MaxActs) })
	testkit.Eventually(t, "another replica knows of them", func() bool {
		got := methods(t, other)
		return len(got) == MaxActs && got[0] == fmt.Sprint(MaxActs+19) && got[MaxActs-1] == "20"
	})
	var size int
	if _, err := fmt.Sscan(db.CLI("MEMORY", "USAGE", texts, "SAMPLES", "0"), &size); err != nil || size > 1<<20 {
		t.Errorf("they take %d bytes of Redis (%v), want a megabyte at most", size, err)
	}
}

// deaf is a store that loses replies while it is deaf.
type deaf struct {
	Store

	is      atomic.Bool
	appends atomic.Int64
}

// Append implements [Store].
func (d *deaf) Append(ctx context.Context, ids []string, acts [][]byte, most int) error {
	err := d.Store.Append(ctx, ids, acts, most)
	if d.appends.Add(1); d.is.Load() {
		return errors.New("the reply is lost")
	}
	return err
}

// TestLostReplies: an act with repeatedly lost replies is stored once, and displaces no others.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	other, store := replica(t, db), &deaf{Store: ScriptStore{acts(t, db)}}
	const many = 900
	for i := range many {
		other.Add(t.Context(), &Act{Method: fmt.Sprint(i)})
	}
	store.is.Store(true)
	l := New(store, quiet())
	l.Add(t.Context(), &Act{Method: "lost"})
	for range MaxActs + 10 { // 33 minutes of retries
		_ = l.flush(t.Context())
	}
	if n := store.appends.Load(); n < MaxActs {
		t.Errorf("it was stored %d times", n)
	}
	testkit.Eventually(t, "all acts are there, once", func() bool {
		got := methods(t, other)
		return len(got) == many+1 && got[0] == "lost" && got[many] == "0"
	})
	store.is.Store(false)
	testkit.Eventually(t, "the reply comes", func() bool { return l.flush(t.Context()) == nil })
	if n := db.CLI("HLEN", "test:rl:{audit}:acts"); n != fmt.Sprint(many+2) { // and the last number
		t.Errorf("%s are stored", n)
	}
}

// TestHugeActs: acts of excessive size are not sent, and are logged once; others are read.
func TestHugeActs(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	l := replica(t, db)
	l.Add(t.Context(), &Act{Method: "first"})
	const size = 1 << 20
	client := db.Client()
	for i := range 20 {
		id := fmt.Sprint("x", i)
		client.ZAdd(t.Context(), "test:rl:{audit}:ids", goredis.Z{Score: float64(i + 2), Member: id})
		client.HSet(t.Context(), "test:rl:{audit}:acts", id, strings.Repeat("x", size), "", fmt.Sprint(i+2))
	}
	l.Add(t.Context(), &Act{Method: "last"})
	before := sent(db)
	if got := methods(t, replica(t, db)); !slices.Equal(got, []string{"last", "first"}) {
		t.Errorf("the acts are %v", got)
	}
	if n := sent(db) - before; n > size {
		t.Errorf("Redis has sent %d bytes", n)
	}
}

// sent returns the number of bytes that Redis has sent.
func sent(db *redistest.Server) (n int) {
	for line := range strings.Lines(db.CLI("INFO", "stats")) {
		if rest, ok := strings.CutPrefix(line, "total_net_output_bytes:"); ok {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n
}
