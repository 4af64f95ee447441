package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestSplit checks that the answers to merged takes are those of the same takes one after the other.
func TestSplit(t *testing.T) {
	t.Parallel()
	for range 3000 {
		hits := rand.Uint64N(30)
		limit := engine.Limit{Algorithm: engine.FixedWindow, Hits: hits, Window: 60e6, CountRefused: rand.IntN(2) == 0}
		if rand.IntN(2) == 0 && hits > 0 {
			limit.Algorithm, limit.Burst, limit.Initial = engine.TokenBucket, hits, hits
		}
		limits := engine.Limits{limit}
		const now = engine.Micros(1e15)
		var merged, single engine.State
		before := engine.Take{Cost: 1, Count: rand.Uint64N(20)}
		limits.Take([]*engine.State{&merged}, now, before)
		limits.Take([]*engine.State{&single}, now, before)
		w := &waiter{done: make(chan struct{}, 1)}
		w.items = make([]item, 1+rand.IntN(8))
		w.users.Store(int32(len(w.items)) + 1)
		w.pending.Store(int32(len(w.items)))
		sum := engine.Take{Cost: 1 + rand.Uint64N(4)}
		for i := range w.items {
			it := &w.items[i]
			it.waiter = w
			it.count = 1 + rand.Uint64N(3)
			it.op = backend.Op{Limits: limits, Take: engine.Take{Cost: sum.Cost, Count: it.count}}
			sum.Count += it.count
			if i > 0 {
				w.items[i-1].merged = it
			}
		}
		w.items[0].op.Take.Count = sum.Count
		w.items[0].op.Decision = limits.Take([]*engine.State{&merged}, now, sum)
		split(&w.items[0])
		for i := range w.items {
			it := &w.items[i]
			want := limits.Take([]*engine.State{&single}, now, engine.Take{Cost: sum.Cost, Count: it.count})
			got := it.op.Decision
			if !it.done.Load() || got.Admitted != want.Admitted || got.Left != want.Left || (got.RetryAfter == 0) != (want.RetryAfter == 0) {
				t.Fatalf("%+v after %d: take %d of %+v: got %+v, want %+v", limit, before.Count, i, sum, got, want)
			}
		}
	}
}

// TestBatchBounded checks that calls that repeat the same op many times do not make a batch as large as all of them together.
func TestBatchBounded(t *testing.T) {
	t.Parallel()
	const calls, same = 40, 100
	var largest atomic.Int64
	b, err := New(Config{URL: redistest.Start(t).Addr(), OpTimeout: slow, DialTimeout: slow, Observer: remote.Observer{Batch: func(b remote.Batch) {
		for n := largest.Load(); n < int64(b.Ops) && !largest.CompareAndSwap(n, int64(b.Ops)); n = largest.Load() {
		}
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			ops := make([]backend.Op, same)
			for k := range ops {
				ops[k] = backend.Op{Key: keyOf(i), Limits: lasting(same), Take: engine.Take{Cost: 1, Count: 1}}
			}
			b.Apply(t.Context(), ops)
			for k := range ops {
				if ops[k].Err != nil || ops[k].Decision.Left != uint64(same-k) {
					t.Errorf("op %d: %d left, %v; want %d", k, ops[k].Decision.Left, ops[k].Err, same-k)
					return
				}
			}
		})
	}
	testkit.Eventually(t, "all to wait", func() bool { return waiting(b) == calls*same })
	start(t, b)
	wg.Wait()
	if n := largest.Load(); n > maxCommands+same {
		t.Errorf("a batch of %d, want at most %d", n, maxCommands+same)
	}
}

// TestCutForgets checks that the items of the previous batch, which may be in use elsewhere, do not affect the weight of the next one.
func TestCutForgets(t *testing.T) {
	t.Parallel()
	op := backend.Op{
		Mode: backend.Take, Take: engine.Take{Cost: 1, Count: 1},
		Limits: engine.Limits{{Algorithm: engine.SlidingWindow, Hits: 10 * perRun, Window: 60e6}},
	}
	var q queue
	for range 3 {
		q.push(&item{op: op}, 0)
		q.push(&item{op: op}, 0)
		if n := len(q.cut(nil, maxCommands, maxWeight)); n != 2 || len(q.taken) > 0 {
			t.Fatalf("a batch of %d operations, want 2, and %d are remembered", n, len(q.taken))
		}
	}
}

// TestConnectionsInOrder checks that changes of the number of connections are reported in order.
func TestConnectionsInOrder(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	last, jumps := 0, 0
	b, err := New(Config{URL: "127.0.0.1:1", Observer: remote.Observer{Connections: func(active int) {
		runtime.Gosched() // others may overtake if nothing prevents it
		mu.Lock()
		defer mu.Unlock()
		if active != last+1 && active != last-1 {
			jumps++
		}
		last = active
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				b.main.connected(+1)
				b.main.connected(-1)
			}
		})
	}
	wg.Wait()
	if jumps > 0 || last != 0 || b.Connections() != 0 {
		t.Errorf("%d jumps; at the end it was told of %d connections, and %d are counted", jumps, last, b.Connections())
	}
}

// TestOrder: ops of one call on one key are done in order, however many calls there are, even though two writers send
// them.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow}, true)
	var wg sync.WaitGroup
	for caller := range 32 {
		wg.Go(func() {
			for round := range 30 {
				limits := lasting(1e6)
				ops := make([]backend.Op, 0, 60)
				for range 10 {
					for k := range 2 {
						key := keyOf(1000 + 2*caller + k)
						ops = append(ops,
							backend.Op{Key: key, Limits: limits, Take: engine.Take{Cost: 1, Count: 1}},
							backend.Op{Key: key, Limits: limits, Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}},
							backend.Op{Key: key, Limits: limits, Take: engine.Take{Cost: 2, Count: 1}})
					}
				}
				b.Apply(t.Context(), ops)
				for i := range ops {
					want := 1e6 - uint64(30*round+3*(i/6)+[]int{0, 1, 1}[i%3])
					if ops[i].Err != nil || ops[i].Decision.Left != want {
						t.Errorf("round %d, op %d: %d left, %v; want %d", round, i, ops[i].Decision.Left, ops[i].Err, want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestRunning checks that ops wait for Run, and fail after it has ended.
func TestRunning(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := opened(t, Config{URL: s.Addr(), OpTimeout: slow})
	if c := class(oneIn(b, 1, usual)); c != remote.Timeout {
		t.Errorf("before Run: class %q, want timeout", c)
	}
	answered := make(chan backend.Op)
	go func() { answered <- one(b, 1) }()
	time.Sleep(20 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- b.Run(ctx) }()
	if op := <-answered; op.Err != nil || op.Decision.Left != 1e6 {
		t.Errorf("queued before Run: %d left, %v; want all", op.Decision.Left, op.Err)
	}
	if err := b.Run(ctx); err == nil {
		t.Error("a second Run is no error")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if c := class(one(b, 1)); c != remote.Other {
		t.Errorf("after Run: class %q, want other", c)
	}
	if n := b.Connections(); n != 0 {
		t.Errorf("after Run %d connections are up", n)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// TestNoTime checks that nothing is sent with less than 1 ms left.
func TestNoTime(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	b := run(t, Config{URL: s.Addr(), OpTimeout: slow}, true)
	for _, wait := range []time.Duration{-time.Second, 0, time.Microsecond, 2900 * time.Microsecond} {
		if c := class(oneIn(b, 1, wait)); c != remote.Timeout {
			t.Errorf("with %v left: class %q, want timeout", wait, c)
		}
	}
	if op := one(b, 1); op.Decision.Left != 1e6 {
		t.Errorf("%d are left, want all: something was sent", op.Decision.Left)
	}
}

// TestSlowQueue checks that callers with enough time wait while a slow node works through its queue and keeps answering: four batches of
// 25 ms each.
func TestSlowQueue(t *testing.T) {
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr(), PoolSize: 1, DialTimeout: slow}, true)
	p.Latency.Store(int64(12 * time.Millisecond)) // in each direction
	for _, wait := range []time.Duration{0, slow} {
		testkit.Eventually(t, "a crowd of which all are answered", func() bool { // a stall of the machine may prevent it
			var wg sync.WaitGroup
			var failed atomic.Int64
			begun := time.Now()
			for i := range 4 * maxCommands {
				wg.Go(func() {
					op := backend.Op{}
					if wait == 0 {
						op = one(b, i)
					} else {
						op = oneIn(b, i, wait)
					}
					if op.Err != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			t.Logf("%d of %d failed, in %v", failed.Load(), 4*maxCommands, time.Since(begun))
			return failed.Load() == 0
		})
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, "redis n: timeout: no answer in time"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "redis n: refused: dial: connection refused"},
		{io.EOF, "redis n: reset: EOF"},
		{fmt.Errorf("writing: %w", syscall.ECONNRESET), "redis n: reset: writing: connection reset by peer"},
		{reply("READONLY You can't write against a read only replica."), "redis n: readonly: READONLY You can…"},
		{reply("OOM command not allowed when used memory > 'maxmemory'."), "redis n: oom: OOM command not allowed when used memory > …"},
		{reply("ERR Error running script (call to f_0): @user_script:1: -OOM command not allowed"), "oom"},
		{reply("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.  "), "oom"},
		{reply("@user_script: 1: -READONLY You can't write against a read only replica.  "), "readonly"},
		{reply("BUSY Redis is busy running a script."), "redis n: busy: BUSY Redis is busy running a script."},
		{reply("LOADING Redis is loading the dataset in memory"), "loading"},
		{reply("CLUSTERDOWN The cluster is down"), "clusterdown"},
		{reply("MASTERDOWN Link with MASTER is down"), "clusterdown"},
		{reply("NOREPLICAS Not enough good replicas to write."), "clusterdown"},
		{reply("MISCONF Redis is configured to save RDB snapshots"), "readonly"},
		{reply("NOAUTH Authentication required."), "noauth"},
		{fmt.Errorf("failed to authenticate: %w", reply("WRONGPASS invalid username-password pair")), "noauth"},
		{reply("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"), "noauth"},
		{reply("ERR Client sent AUTH, but no password is set"), "noauth"}, // this and the next one are from Redis before 6.0
		{reply("ERR invalid password"), "noauth"},
		{reply("ERR wrong number of arguments for 'auth' command"), "noauth"},
		{reply("NOPERM this user has no permissions to run the 'evalsha' command"), "redis n: noauth: NOPERM: the user lacks a permission"},
		{reply("NOPERM User app has no permissions to run the 'script|load' command"), "redis n: noauth: NOPERM: the user lacks a permission"},
		{reply("NOPERM No permissions to access a key"), "redis n: noauth: NOPERM: the user may not use the keys of counters"},
		{reply("ERR The user executing the script can't run this command or subcommand script: abc"), "redis n: noauth: NOPERM: the user lacks a permission"},
		{reply("NOSCRIPT No matching script."), "noscript"},
		{
			reply("ERR This instance has cluster support disabled"),
			"redis n: other: the server there is not part of a cluster: REDIS_TYPE, or REDIS_PERSECOND_TYPE if it is for limits per second, must be single",
		},
		{reply("ERR unknown command `EVALSHA`, with args beginning with: `secret`"), "redis n: other: ERR unknown command …"},
		{reply("ERR max number of clients reached"), "refused"},
		{errors.New("line\nbreak"), `redis n: other: line\nbreak`},
		{errors.New(strings.Repeat("é", 150)), "redis n: other: " + strings.Repeat("é", 100) + "…"},
	} {
		e := classify("n", c.err)
		if got := e.Error(); got != c.want && string(e.Class) != c.want {
			t.Errorf("%v: %q of class %s, want %q", c.err, got, e.Class, c.want)
		}
		if again := classify("other", e); again != e {
			t.Errorf("%v: classified twice it is another error", c.err)
		}
	}
}

// reply is an error in the form that go-redis returns.
type reply string

func (r reply) Error() string { return string(r) }

// RedisError marks it as an error reply for go-redis.
func (reply) RedisError() {}

func FuzzURL(f *testing.F) {
	for _, s := range []string{"localhost:6379", "redis://user:hunter2@host:1/2", "rediss://:hunter2@[::1]", "m,a:1,redis://hunter2@b:2", "unix:///x?db=1&password=hunter2", "redis://hunter2%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, kind := range []Type{Single, Sentinel, Cluster} {
			c := Config{URL: s, Type: kind, Network: "tcp"}
			target, err := c.parse()
			if err == nil && len(target.addrs) == 0 {
				t.Errorf("%q names no server, and is accepted", s)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%q: the error tells the password: %v", s, err)
			}
		}
	})
}
