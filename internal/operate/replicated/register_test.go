package replicated_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// words is a table of texts. "?" is invalid.
type words struct {
	mu      sync.Mutex
	entries map[string]replicated.Entry
}

func newWords() *words { return &words{entries: map[string]replicated.Entry{}} }

func (w *words) Entry(key string) replicated.Entry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries[key]
}

func (w *words) Take(e *replicated.Entry) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if delete(w.entries, e.Key); e.Text == "?" {
		return errors.New("it is a question mark")
	}
	w.entries[e.Key] = *e
	return nil
}

func (w *words) Keys() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.entries))
}

func (w *words) Drop(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.entries, key)
}

func (w *words) Settle(before int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.entries, func(_ string, e replicated.Entry) bool { return e.Expires > 0 && e.Expires < before })
}

func (w *words) texts() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]string{}
	for key, e := range w.entries {
		all[key] = e.Text
	}
	return all
}

var errFailed = errors.New("asking the store of the words")

// replica returns a register on Redis, until the test ends, and its table.
func replica(t *testing.T, addr string) (*replicated.Register, *words) {
	t.Helper()
	table := newWords()
	r := replicated.New(replicated.Config{Table: table, Store: open(t, addr), What: "words", Failed: errFailed, Log: slog.New(slog.DiscardHandler)})
	testkit.Run(t, r.Run)
	<-r.First()
	return r, table
}

// put stores a text as soon as Redis answers, and returns the number of attempts.
func put(t *testing.T, r *replicated.Register, key, text string, expires time.Time) (tries int) {
	t.Helper()
	var err error
	testkit.Eventually(t, "a text can be stored", func() bool {
		tries++
		err = r.Put(t.Context(), func() ([]replicated.Entry, error) {
			e := replicated.Entry{Key: key, Text: text}
			if !expires.IsZero() {
				e.Expires = expires.UnixMilli()
			}
			return []replicated.Entry{e}, nil
		})
		return err == nil
	}, func() string { return fmt.Sprint(err) })
	return tries
}

// agree waits until all tables have these texts.
func agree(t *testing.T, want map[string]string, all ...*words) {
	t.Helper()
	for i, w := range all {
		testkit.Eventually(t, fmt.Sprintf("replica %d has all", i), func() bool { return maps.Equal(w.texts(), want) }, func() string {
			return fmt.Sprintf("%v, want %v", w.texts(), want)
		})
	}
}

// state is all data of the register in a Redis.
type state map[string]string

func dump(t *testing.T, db *goredis.Client) state {
	t.Helper()
	s := state{}
	for _, key := range db.Keys(t.Context(), "rl:{words}*").Val() {
		s[key] = db.Dump(t.Context(), key).Val()
	}
	return s
}

// restore restores a state of Redis.
func restore(t *testing.T, db *goredis.Client, s state) {
	t.Helper()
	if _, err := db.TxPipelined(t.Context(), func(p goredis.Pipeliner) error {
		p.FlushAll(t.Context())
		for key, value := range s {
			p.Restore(t.Context(), key, 0, value)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestFallBack: after any changes to the data in Redis, all replicas eventually agree on the last text of each successful Put.
func TestFallBack(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			db := redistest.Start(t)
			client := db.Client()
			var registers []*replicated.Register
			var tables []*words
			for range 3 {
				r, table := replica(t, db.Addr())
				registers, tables = append(registers, r), append(tables, table)
			}
			last, states := map[string]string{}, []state{{}}
			for i := range 40 {
				key, text := fmt.Sprint("k", random.IntN(6)), fmt.Sprint("text ", i)
				for r := registers[random.IntN(3)]; put(t, r, key, text, time.Now().Add(time.Hour)) > 1; {
					continue // a failed call may still be carried out, but not after the next one
				}
				last[key] = text
				switch random.IntN(8) {
				case 0:
					restore(t, client, states[random.IntN(len(states))])
				case 1, 2:
					states = append(states, dump(t, client))
				case 3: // one key is evicted
					if all := client.Keys(t.Context(), "rl:{words}*").Val(); len(all) > 0 {
						client.Del(t.Context(), all[random.IntN(len(all))])
					}
				case 4: // other replicas may or may not receive it
					time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
				}
				if random.IntN(5) > 0 {
					continue
				}
				agree(t, last, tables...) // at times, because data that only one replica knows is lost with it
			}
			agree(t, last, tables...)
			_, late := replica(t, db.Addr())
			agree(t, last, late)
		})
	}
}

// TestAwayForLong: a replica that was out of sync for longer than tombstones last restores nothing.
func TestAwayForLong(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	proxy := testkit.NewProxy(t, db.Addr())
	near, nearTable := replica(t, db.Addr())
	far, farTable := replica(t, proxy.Addr())
	put(t, near, "a", "kept", time.Time{})
	put(t, near, "b", "to be taken away", time.Time{})
	all := map[string]string{"a": "kept", "b": "to be taken away"}
	agree(t, all, nearTable, farTable)

	proxy.Target("127.0.0.1:1")
	proxy.Cut()
	if err := far.WasAway(t.Context(), 2*replicated.Lasts); err != nil {
		t.Fatal(err)
	}
	nearTable.Drop("b") // as if it was that long ago
	db.CLI("FLUSHALL")
	put(t, near, "c", "new", time.Time{})
	delete(all, "b")
	all["c"] = "new"
	agree(t, all, nearTable)
	proxy.Target(db.Addr())
	agree(t, all, farTable, nearTable)
}

// TestExpiry: an entry expires no earlier than entries that it replaced, and is then forgotten.
func TestExpiry(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r, table := replica(t, db.Addr())
	other, _ := replica(t, db.Addr())
	late := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	put(t, r, "a", "long", late)
	put(t, other, "a", "short", time.Now().Add(time.Second))
	agree(t, map[string]string{"a": "short"}, table)
	if e := table.Entry("a"); e.Expires != late.UnixMilli() {
		t.Errorf("it expires at %v, want %v", time.UnixMilli(e.Expires), late)
	}
	put(t, r, "a", "for good", time.Time{})
	if e := table.Entry("a"); e.Expires != 0 {
		t.Errorf("it expires at %v, want never", time.UnixMilli(e.Expires))
	}
	put(t, r, "b", "over", time.Now().Add(-2*replicated.SweepEach))
	testkit.Eventually(t, "what has expired is forgotten", func() bool {
		put(t, r, "c", "another", time.Now().Add(time.Hour))
		return db.CLI("ZCARD", "rl:{words}:changed") == "2"
	})
	table.Settle(time.Now().Add(-replicated.SweepEach).UnixMilli())
	agree(t, map[string]string{"a": "for good", "c": "another"}, table)
}

// TestPages: calls that read and write entries have at most 64 KB, for any size of entries, and the maximum number of entries holds.
func TestPages(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r, table := replica(t, db.Addr())
	want := map[string]string{}
	var entries []replicated.Entry
	for i := range 100 {
		e := replicated.Entry{Key: fmt.Sprint("k", i), Text: strings.Repeat("x", 9000+i)}
		entries, want[e.Key] = append(entries, e), e.Text
	}
	store := func() error {
		return r.Put(t.Context(), func() ([]replicated.Entry, error) { return slices.Clone(entries), nil })
	}
	var err error
	testkit.Eventually(t, "they are stored", func() bool { err = store(); return err == nil }, func() string { return fmt.Sprint(err) })
	_, other := replica(t, db.Addr())
	agree(t, want, table, other)
	pages := open(t, db.Addr())
	defer pages.Leave(t.Context())
	read := 0
	for since, more := (replicated.Revision{}), true; more; {
		c, err := pages.Changes(t.Context(), since, "")
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, e := range c.Entries {
			size += len(e.Key) + len(e.Text)
		}
		if size > 64_000 {
			t.Errorf("a page has %d bytes", size)
		}
		read += len(c.Entries)
		since, more = c.Revision, c.More
	}
	if read != len(entries) {
		t.Errorf("%d entries are read, want %d", read, len(entries))
	}
	entries = append(entries, replicated.Entry{Key: "one more"})
	testkit.Eventually(t, "one more is too many", func() bool { return errors.Is(store(), replicated.ErrFull) })
	agree(t, want, table, other)
}

// TestUnreadable: an unreadable entry hides no others, and its replacement is read.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r, table := replica(t, db.Addr())
	_, other := replica(t, db.Addr())
	put(t, r, "a", "fine", time.Time{})
	put(t, r, "a", "?", time.Time{})
	put(t, r, "b", "fine", time.Time{})
	agree(t, map[string]string{"b": "fine"}, table, other)
	put(t, r, "a", "fine again", time.Time{})
	agree(t, map[string]string{"a": "fine again", "b": "fine"}, table, other)
}
