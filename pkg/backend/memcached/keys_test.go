package memcached

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// at returns a clock that stands still.
func at(seconds int64) func() engine.Micros {
	return func() engine.Micros { return engine.Micros(seconds * 1e6) }
}

// TestReferenceGoesOn checks that this package continues a counter begun with the reference's commands, and vice versa.
func TestReferenceGoesOn(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{
		Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, KeyPrefix: "pre_", ExpirationJitter: 300 * time.Second,
		OpTimeout: slow, Now: at(1234),
	}, true)
	s.Send("flush_all")
	const key = "pre_mongo_cps_database_users_1200" // of the minute that contains second 1234
	s.Send("add " + key + " 0 60 1\n3")
	op := backend.Op{
		Name: []byte("mongo_cps_database_users_"), Take: engine.Take{Cost: 2, Count: 1},
		Limits: engine.Limits{{Algorithm: engine.FixedWindow, Hits: 10, Window: 60e6, CountRefused: true}},
	}
	got := apply(b, op)
	want := engine.Decision{Admitted: 1, Left: 7, Window: 1200e6, ResetAfter: 26 * time.Second}
	if diff := cmp.Diff(want, got.Decision); diff != "" || got.Err != nil {
		t.Fatalf("%v (-want +got):\n%s", got.Err, diff)
	}
	if got := s.Send("incr " + key + " 1"); got != "6" {
		t.Errorf("the reference goes on with %s, want 6", got)
	}
	if keys := slices.Collect(maps.Keys(s.Items())); !slices.Equal(keys, []string{key}) {
		t.Errorf("keys %q, want this one only", keys)
	}
	op.Name = nil
	if got := apply(b, op); !errors.Is(got.Err, errNoName) {
		t.Errorf("without a name: %v", got.Err)
	}
	op.Name, op.Limits = []byte("a_"), engine.Limits{{Algorithm: engine.FixedWindow, Hits: 10, Window: 1, CountRefused: true}}
	if got := apply(b, op); !errors.Is(got.Err, errWhole) {
		t.Errorf("a window of 1 µs: %v", got.Err)
	}
}

// TestShards checks that keys are on the same servers as with gomemcache, and so with the reference.
func TestShards(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 7; n++ {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("127.0.0.1:%d", 1000+i))
		}
		list := new(memcache.ServerList)
		if err := list.SetServers(names...); err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			key := fmt.Sprintf("domain_key_%d_%s1200", i, strings.Repeat("x", i))
			want, err := list.PickServer(key)
			if err != nil {
				t.Fatal(err)
			}
			if got := names[shard(key, n)]; got != want.String() {
				t.Fatalf("%q of %d servers lives on %s, want %s", key, n, got, want)
			}
		}
	}
}

// TestKeysOfClients: names that memcached does not accept, and what the reference turns them into, are limited like a
// short name.
func TestKeysOfClients(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	names := []string{
		"short", strings.Repeat("l", 229), strings.Repeat("l", 260), strings.Repeat("l", 60_000),
		"two words", "tab\t", "line\r\nflush_all", "nul\x00", "del\x7f",
		"\xff\xfe", "ümlaut", "",
	}
	for _, format := range []KeyFormat{OurKeys, ReferenceKeys} {
		for _, prefix := range []string{"", "pre fix", strings.Repeat("p", 300)} {
			b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: format, KeyPrefix: prefix, OpTimeout: slow, Now: at(7200)}, true)
			s.Send("flush_all")
			for round := range uint64(3) {
				var ops []backend.Op
				for _, name := range names {
					op := opOn(name)
					op.Limits = perHour(2)
					if len(name) > len(op.Key) {
						op.Key[0] = byte(len(name)) // normally a hash
					}
					ops = append(ops, op)
				}
				b.Apply(t.Context(), ops)
				for i := range ops {
					if d := ops[i].Decision; ops[i].Err != nil || d.Left != 2-round || (d.Admitted == 1) != (round < 2) {
						t.Fatalf("format %d, take %d of %.20q: %+v, %v", format, round, names[i], d, ops[i].Err)
					}
				}
			}
			for key := range s.Items() {
				if len(key) > maxKey {
					t.Errorf("a key of %d bytes", len(key))
				}
			}
		}
	}
}

// TestHashedKeysAreNobodyElses checks that a hashed name cannot equal an unhashed one.
func TestHashedKeysAreNobodyElses(t *testing.T) {
	t.Parallel()
	long := []byte(strings.Repeat("k", 251))
	hashed := legal(long)
	if len(hashed) > maxKey || strings.ContainsAny(hashed, "_{ ") || hashed == legal(append(long, 'k')) {
		t.Errorf("%q stands for a long key", hashed)
	}
	if same := legal(long[:250]); same != string(long[:250]) {
		t.Errorf("a key of 250 bytes became %q", same)
	}
}

// TestLongWindows checks that counters of windows longer than thirty days, memcached's longest relative expiry, live until their window
// ends, unlike those of the reference.
func TestLongWindows(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, ExpirationJitter: 300 * time.Second, OpTimeout: slow, Now: at(time.Now().Unix())}, true)
	const day = 24 * time.Hour
	for _, window := range []time.Duration{time.Second, time.Minute, day, 30*day - time.Second, 30 * day, 31 * day, 365 * day, 1 << 48 * time.Microsecond} {
		s.Send("flush_all")
		op := opOn(window.String())
		op.Limits[0].Window, op.Limits[0].Hits = engine.Micros(window.Microseconds()), 1
		begun := time.Now()
		first := apply(b, op)
		ends := begun.Add(first.Decision.ResetAfter)
		if first.Err != nil || first.Decision.Admitted != 1 {
			t.Fatalf("%v: %+v, %v", window, first.Decision, first.Err)
		}
		if second := apply(b, op); second.Err != nil || second.Decision.Admitted != 0 {
			t.Errorf("%v: the second take of one is %+v, %v", window, second.Decision, second.Err)
		}
		for key, expires := range s.Items() {
			if expires.Before(ends) || expires.After(time.Now().Add(window+10*time.Minute)) {
				t.Errorf("window of %v: the counter %s expires %v, want after its window, %v, and soon after its length", window, key, expires, ends)
			}
		}
	}
}

func TestExpiration(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	for lasts, want := range map[time.Duration]int32{
		time.Second:             1,
		1500 * time.Millisecond: 2,
		30 * day:                30 * 86400,
		30*day + 1:              int32(now.Add(30*day).Unix()) + 61,
		365 * day:               int32(now.Add(365*day).Unix()) + 61,
		time.Unix(1<<31-1, 0).Sub(now) - 61*time.Second: 1<<31 - 1,
		time.Unix(1<<31-1, 0).Sub(now) - 60*time.Second: 0, // no expiry
		50 * 365 * day: 0,
	} {
		if got := expiration(now, lasts); got != want {
			t.Errorf("%v: %d, want %d", lasts, got, want)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"no server is set":                {},
		`server 2 of 2, "b", has no port`: {Servers: []string{"a:1", "b"}},
		`server 1 of 1, "", has no port`:  {Servers: []string{""}},
		`"a:", has no port`:               {Servers: []string{"a:"}},
		"server 2 of 2 has a user or":     {Servers: []string{"a:1", "user:word@b:1"}},
		"server 1 of 1 has a user or":     {Servers: []string{"memcached://user:word@b:1"}},
		"the timeout is -2ns":             {Servers: []string{"a:1"}, OpTimeout: -2},
		"jitter":                          {Servers: []string{"a:1"}, ExpirationJitter: -1},
		"key format 7":                    {Servers: []string{"a:1"}, KeyFormat: 7},
		"":                                {Servers: []string{"a:1", "/run/memcached@1.sock", "[::1]:2"}, OpTimeout: time.Second},
	} {
		_, err := New(c)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
		if strings.Contains(fmt.Sprint(err), "word@") {
			t.Errorf("%+v: the error repeats a password: %v", c, err)
		}
	}
}

// TestUnix connects to a server through a Unix socket.
func TestUnix(t *testing.T) {
	t.Parallel()
	socket := t.TempDir() + "/memcached.sock"
	l := testkit.ListenOn(t, "unix", socket)
	s := memcachedtest.Start(t)
	testkit.NewProxyOn(t, l, s.Addr())
	b := run(t, Config{Servers: []string{socket}, OpTimeout: slow}, true)
	if op := one(b, "a"); op.Err != nil || op.Decision.Left != 1e6 {
		t.Errorf("%+v, %v", op.Decision, op.Err)
	}
}

// TestManyLongKeys checks that a call with the maximum number of ops of a request, with keys of the maximum length, makes its checks in
// one exchange.
func TestManyLongKeys(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	var exchanges atomic.Int64
	b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: slow, Now: at(7200), Observer: remote.Observer{
		Batch: func(remote.Batch) { exchanges.Add(1) },
	}}, true)
	var ops []backend.Op
	for i := range 128 {
		ops = append(ops, opOn(fmt.Sprintf("%s%03d", strings.Repeat("k", 241), i))) // with _7200, 249 characters
	}
	b.Apply(t.Context(), ops)
	before := exchanges.Load()
	for i := range ops {
		ops[i].Mode = backend.Peek
	}
	b.Apply(t.Context(), ops)
	for i := range ops {
		if ops[i].Err != nil || ops[i].Decision.Left != 1e6-1 {
			t.Fatalf("op %d: %+v, %v", i, ops[i].Decision, ops[i].Err)
		}
	}
	if n := exchanges.Load() - before; n != 1 {
		t.Errorf("the looks took %d exchanges, want one", n)
	}
	if n := len(s.Items()); n != 129 { // including the one of run
		t.Errorf("%d counters, want 129", n)
	}
}
