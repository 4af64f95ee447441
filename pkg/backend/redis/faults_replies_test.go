package redis

import (
	"context"
	"fmt"
	"os"
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
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// broken runs cause, which makes Redis fail, and for two seconds, until after cure, expects ops of the given class; then
// decisions.
func broken(t *testing.T, b *Backend, want remote.Class, cause, cure func()) {
	t.Helper()
	cause()
	testkit.Eventually(t, "class "+string(want), func() bool { return class(oneIn(b, 1, usual)) == want })
	var took []time.Duration
	late := 0
	for end := time.Now().Add(2 * time.Second); len(took) < 100 || time.Now().Before(end); time.Sleep(time.Millisecond) {
		begun := time.Now()
		if c := class(oneIn(b, 1, usual)); c != want {
			if c != remote.Timeout && c != remote.Overload { // as on a busy machine
				t.Fatalf("class %q, want %q", c, want)
			}
			late++
		}
		took = append(took, time.Since(begun))
	}
	if late > len(took)/2 {
		t.Errorf("%d of %d calls were late", late, len(took))
	}
	slices.Sort(took)
	figure(t, "most answers", took[len(took)*9/10], usual)
	cure()
	figure(t, "recovery", testkit.Eventually(t, "a decision", func() bool { return oneIn(b, 1, usual).Err == nil }), time.Second)
}

func TestF09b_Evicting(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]int{"allkeys-random": 1, "volatile-lru": 1, "noeviction": 0, "volatile-ttl": 0} {
		var e events
		s := redistest.Start(t, "maxmemory 2mb", "maxmemory-policy "+policy)
		run(t, Config{URL: s.Addr(), Observer: remote.Observer{Event: e.observe}}, true)
		if got := min(e.count(EventMaxMemory), 1); got != want {
			t.Errorf("maxmemory-policy %s: %d events, want %d", policy, got, want)
		}
	}
}

// TestF09b_Evicted checks that evicted keys are counted.
func TestF09b_Evicted(t *testing.T) {
	t.Parallel()
	var evicted atomic.Int64
	s := redistest.Start(t, "maxmemory 3mb", "maxmemory-policy allkeys-random")
	b := run(t, Config{URL: s.Addr(), Evicted: func(_ string, n int64) { evicted.Add(n) }}, true)
	for i := range 100 {
		s.CLI("SET", fmt.Sprint("filler", i), strings.Repeat("x", 50_000))
	}
	want := infoField(s.CLI("INFO", "stats"), "evicted_keys")
	if want == "0" {
		t.Fatal("nothing was evicted")
	}
	testkit.Eventually(t, "the count", func() bool {
		if fmt.Sprint(evicted.Load()) == want {
			return true
		}
		time.Sleep(100 * time.Millisecond)
		want = infoField(s.CLI("INFO", "stats"), "evicted_keys") // the query itself may evict a key
		return false
	})
	testkit.Eventually(t, "a decision", func() bool { return oneIn(b, 1, usual).Err == nil })
}

func TestF10_ReadOnly(t *testing.T) {
	t.Parallel()
	s, other := redistest.Start(t), redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr()}, true)
	s.CLI("REPLICAOF", "127.0.0.1", fmt.Sprint(other.Port()))
	testkit.Eventually(t, "a rejection", func() bool { return class(oneIn(b, 1, usual)) == ClassReadOnly })
	p.Target(other.Addr())
	figure(t, "recovery", testkit.Eventually(t, "a decision", func() bool { return oneIn(b, 1, usual).Err == nil }), time.Second)
}

// TestF10_ReadOnlyHealsAtOnce checks that callers do not notice a replica if a new connection leads to a master.
func TestF10_ReadOnlyHealsAtOnce(t *testing.T) {
	t.Parallel()
	s, other := redistest.Start(t), redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr(), OpTimeout: slow, DialTimeout: slow}, true)
	p.Target(other.Addr())
	s.CLI("REPLICAOF", "127.0.0.1", fmt.Sprint(other.Port()))
	for i := range 10 {
		if op := one(b, i); op.Err != nil {
			t.Fatalf("op %d: %v", i, op.Err)
		}
	}
}

func TestF11_RotatedPassword(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "user app on >first ~* +@all", "user default off")
	admin := []string{"--user", "app", "--pass", "first", "--no-auth-warning"}
	cli := func(args ...string) { s.CLI(append(slices.Clone(admin), args...)...) }
	file := filepath.Join(t.TempDir(), "auth")
	write := func(text string) {
		testkit.WriteFile(t, file, text)
	}
	write("app:first\n")
	b := run(t, Config{URL: s.Addr(), AuthFile: file, OpTimeout: slow, DialTimeout: slow}, true)
	// One call at a time: commands that Redis had read when their connection was killed may have counted, and are not resent.
	calls := func() {
		t.Helper()
		for i := range 20 {
			if op := one(b, i); op.Err != nil {
				t.Errorf("a call: %v", op.Err)
			}
		}
	}
	calls()
	cli("ACL", "SETUSER", "app", ">second") // both are valid
	calls()
	write("app:second\n")
	for range 10 {
		cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		calls()
	}
	admin[3] = "second"
	cli("ACL", "SETUSER", "app", "<first")
	calls()
	cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	calls()
	write("app:wrong\n")
	cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	var last backend.Op
	testkit.Eventually(t, "a rejection", func() bool { last = one(b, 1); return class(last) == ClassNoAuth })
	if text := last.Err.Error(); strings.Contains(text, "wrong") && strings.Contains(text, "app:") {
		t.Errorf("the error tells the password: %s", text)
	}
	write("app:second\n")
	figure(t, "recovery", testkit.Eventually(t, "a decision", func() bool { return one(b, 1).Err == nil }), time.Second)
}

func TestF14_Busy(t *testing.T) {
	s := redistest.Start(t, "lua-time-limit 50") // called busy-reply-threshold since Redis 7
	b := run(t, Config{URL: s.Addr()}, true)
	c := s.Client()
	var wg sync.WaitGroup
	defer wg.Wait()
	l := ride(t, b, 2*time.Second, func() {
		wg.Go(func() { c.Eval(context.WithoutCancel(t.Context()), "while true do end", nil) }) // ended by the cure
	}, func() {
		testkit.Eventually(t, "the end of the script", func() bool { return s.CLI("SCRIPT", "KILL") == "OK" })
	})
	if f := failed(l.answers); f[ClassBusy] == 0 {
		t.Errorf("no call met BUSY: %v", f)
	}
}

// TestF21_ErrorReplies checks that each error reply of an unavailable Redis has a class, opens the breaker, and is recovered from.
func TestF21_ErrorReplies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config []string
		class  remote.Class
		cause  func(t *testing.T, s *redistest.Server)
		cure   []string
	}{
		"MASTERDOWN": {
			[]string{"replica-serve-stale-data no"},
			ClassClusterDown,
			func(_ *testing.T, s *redistest.Server) { s.CLI("REPLICAOF", "127.0.0.1", "1") },
			[]string{"REPLICAOF", "NO", "ONE"},
		},
		"NOREPLICAS": {
			nil, ClassClusterDown,
			func(_ *testing.T, s *redistest.Server) { s.CLI("CONFIG", "SET", "min-replicas-to-write", "1") },
			[]string{"CONFIG", "SET", "min-replicas-to-write", "0"},
		},
		"MISCONF": {
			[]string{"enable-protected-configs yes"},
			ClassReadOnly,
			func(t *testing.T, s *redistest.Server) {
				t.Helper()
				dir := filepath.Join(s.Dir(), "gone")
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				s.CLI("CONFIG", "SET", "dir", dir)
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
				s.CLI("CONFIG", "SET", "save", "1000 1000")
				s.CLI("BGSAVE")
			},
			[]string{"CONFIG", "SET", "save", ""},
		},
		"OOM": {
			nil, remote.OOM,
			func(_ *testing.T, s *redistest.Server) { s.CLI("CONFIG", "SET", "maxmemory", "1") },
			[]string{"CONFIG", "SET", "maxmemory", "0"},
		},
		"LOADING": {
			[]string{"loading-process-events-interval-bytes 1024", "busy-reply-threshold 10"},
			ClassLoading,
			func(t *testing.T, s *redistest.Server) {
				t.Helper()
				s.CLI("DEBUG", "POPULATE", "200000", "k", "64")
				s.CLI("CONFIG", "SET", "key-load-delay", "500") // which makes minutes of it
				client, loaded := s.Client(), make(chan struct{})
				go func() {
					defer close(loaded)
					client.Do(context.WithoutCancel(t.Context()), "DEBUG", "RELOAD")
				}()
				t.Cleanup(func() { <-loaded })
			},
			[]string{"CONFIG", "SET", "key-load-delay", "0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, c.config...)
			b := run(t, Config{URL: s.Addr()}, true)
			broken(t, b, c.class, func() { c.cause(t, s) }, func() { s.CLI(c.cure...) })
		})
	}
}
