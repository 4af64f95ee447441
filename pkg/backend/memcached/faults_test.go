package memcached

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// slow is the time-out of tests that do not measure time, and that are fast unless they fail.
const slow = 20 * time.Second

// TestKilled checks that while one of two servers is dead, operations on its counters fail immediately, and those on the other succeed.
// The server recovers.
func TestKilled(t *testing.T) {
	t.Parallel()
	dead, well := memcachedtest.Start(t), memcachedtest.Start(t)
	var events sync.Map
	b := run(t, Config{Servers: []string{dead.Addr(), well.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: slow, DialTimeout: slow, Now: at(7200), Observer: remote.Observer{
		Event: func(e remote.Event) { events.Store(string(e.Kind)+" "+e.Node, true) },
	}}, false)
	onDead, onWell := namesOn(t, 0), namesOn(t, 1)
	for _, name := range []string{onDead, onWell} {
		testkit.Eventually(t, "a decision", func() bool { return one(b, name).Err == nil })
	}
	dead.Kill()
	for range 200 {
		op, other := one(b, onDead), one(b, onWell)
		if c := class(op); c != remote.Reset && c != remote.Refused {
			t.Fatalf("on a dead server: %+v, %v", op.Decision, op.Err)
		}
		if other.Err != nil {
			t.Fatalf("on the other: %v", other.Err)
		}
	}
	both := []backend.Op{opOn(onDead), opOn(onWell)}
	b.Apply(t.Context(), both)
	if both[0].Err == nil || both[1].Err != nil {
		t.Errorf("of one call: %v and %v", both[0].Err, both[1].Err)
	}
	told := func(e string) {
		testkit.Eventually(t, "word of "+e, func() bool { _, ok := events.Load(e); return ok })
	}
	told("connect_failed " + dead.Addr())
	dead.Restart()
	took := testkit.Eventually(t, "a decision by the server that came back", func() bool { return one(b, onDead).Err == nil })
	t.Logf("exact again after %v", took)
	told("connected " + dead.Addr())
	told("connected " + well.Addr())
}

// namesOn returns a name whose counter at second 7200 is on the i-th of two servers.
func namesOn(t *testing.T, i int) string {
	t.Helper()
	for n := range 100 {
		if name := fmt.Sprint("user", n); shard(name+"_7200", 2) == i {
			return name
		}
	}
	t.Fatal("no name for a server")
	return ""
}

// TestRestartedWhileIdle checks that connections closed while idle cause no errors.
func TestRestartedWhileIdle(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow, DialTimeout: slow}, true)
	var wg sync.WaitGroup
	for range 8 { // opens several connections
		wg.Go(func() { one(b, "a") })
	}
	wg.Wait()
	for range 5 {
		s.Restart()
		testkit.Eventually(t, "a decision", func() bool {
			op := one(b, "a")
			if op.Err != nil && class(op) != remote.Refused { // the server may count as down for a while
				t.Errorf("after a restart: %v", op.Err)
			}
			return op.Err == nil
		})
	}
}

// TestBreaker: a server that accepts connections but does not answer in time opens its breaker, which closes when the
// server answers again.
func TestBreaker(t *testing.T) {
	t.Parallel()
	l := testkit.Listen(t)
	var well atomic.Bool
	testkit.Serve(t, l, func(c net.Conn) {
		for r := bufio.NewReader(c); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			answer := "5\r\n"
			if line == "version\r\n" {
				answer = "VERSION 1\r\n"
			} else if !well.Load() {
				continue
			}
			if _, err := io.WriteString(c, answer); err != nil {
				return
			}
		}
	})
	var mu sync.Mutex
	var states []string
	b := run(t, Config{Servers: []string{l.Addr().String()}, DialTimeout: slow, Observer: remote.Observer{Breaker: func(_, state string) {
		mu.Lock()
		defer mu.Unlock()
		states = append(states, state)
	}}}, false)
	told := func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(states, " ")
	}
	testkit.Eventually(t, "the breaker to open", func() bool {
		var crowd sync.WaitGroup
		for range 8 {
			crowd.Go(func() {
				if op := one(b, "a"); class(op) != remote.Timeout {
					t.Errorf("%+v, %v", op.Decision, op.Err)
				}
			})
		}
		crowd.Wait()
		return strings.HasPrefix(told(), "closed open")
	})
	begun := time.Now()
	for range 1000 {
		one(b, "a")
	}
	if took := time.Since(begun); took > slow { // as above
		t.Errorf("with an open breaker 1000 calls took %v", took)
	}
	well.Store(true)
	testkit.Eventually(t, "the breaker to close", func() bool { return one(b, "a").Err == nil && strings.HasSuffix(told(), "closed") })
}

// TestDeadlines checks that a caller returns in time, that commands already sent are counted, and that nothing is sent with too little
// time.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, KeyFormat: ReferenceKeys, OpTimeout: testkit.Patience, Now: at(7200)}, true)
	in := func(d time.Duration, name string) (backend.Op, time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		ops, begun := []backend.Op{opOn(name)}, time.Now()
		b.Apply(ctx, ops)
		return ops[0], time.Since(begun)
	}
	if op, _ := in(2*time.Millisecond, "late"); !errors.Is(op.Err, errLate) {
		t.Errorf("with 2 ms: %v", op.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ops := []backend.Op{opOn("late")}
	if b.Apply(ctx, ops); !errors.Is(ops[0].Err, errLate) {
		t.Errorf("of a caller that has gone: %v", ops[0].Err)
	}
	s.Stop()
	testkit.Eventually(t, "a caller that leaves when its hit is sent", func() bool {
		op, took := in(500*time.Millisecond, "left")
		e, ok := errors.AsType[*remote.Error](op.Err)
		if !ok || e.Class != remote.Timeout || took > slow {
			t.Fatalf("a server that hangs: %v after %v", op.Err, took)
		}
		return !e.Unsent // unsent if this process was suspended first
	})
	s.Cont()
	testkit.Eventually(t, "the hit of who has left", func() bool { return s.Send("get left_7200") == "VALUE left_7200 0 1\n1\nEND" })
	if got := s.Send("get late_7200"); got != "END" {
		t.Errorf("what was not sent is there: %q", got)
	}
}

// TestHangs checks that callers with any deadline do not wait for a hanging server, whether they have sent a command, wait for a
// connection, or arrive later.
func TestHangs(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, MaxConns: 2}, true)
	ask := func() (backend.Op, time.Duration) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		ops, begun := []backend.Op{opOn("a")}, time.Now()
		b.Apply(ctx, ops)
		return ops[0], time.Since(begun)
	}
	s.Server.Stop() // does not wait, so calls are in progress
	var wg sync.WaitGroup
	var longest atomic.Int64
	for range 100 {
		wg.Go(func() {
			op, took := ask()
			if op.Err != nil && class(op) != remote.Timeout {
				t.Errorf("a server that hangs: %+v, %v", op.Decision, op.Err)
			}
			for old := longest.Load(); int64(took) > old && !longest.CompareAndSwap(old, int64(took)); old = longest.Load() {
			}
		})
	}
	wg.Wait()
	t.Logf("callers waited for at most %v, wanted 1 s", time.Duration(longest.Load()))
	if took := time.Duration(longest.Load()); took > 5*time.Second { // a command may take 250 ms; 50 of them would be sequential
		t.Errorf("a caller waited for %v", took)
	}
	begun := time.Now()
	for range 1000 {
		if op, _ := ask(); op.Err == nil {
			t.Fatal("a server that hangs has answered")
		}
	}
	if took := time.Since(begun); took > slow {
		t.Errorf("1000 calls to a server that hangs took %v", took)
	}
	s.Cont()
	t.Logf("exact again after %v", testkit.Eventually(t, "a decision", func() bool { op, _ := ask(); return op.Err == nil }))
}

// TestFewConnections checks that many callers share two connections in turn, and that no call is lost.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	var most atomic.Int64
	b := run(t, Config{Servers: []string{s.Addr()}, MaxConns: 2, OpTimeout: slow, Now: at(7200), Observer: remote.Observer{Connections: func(n int) {
		most.Store(max(most.Load(), int64(n)))
	}}}, true)
	var wg sync.WaitGroup
	var admitted atomic.Uint64
	for range 200 {
		wg.Go(func() {
			for range 5 {
				op := opOn("a")
				op.Limits = perHour(500)
				op = apply(b, op)
				if op.Err != nil {
					t.Error(op.Err)
				}
				admitted.Add(op.Decision.Admitted)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 500 || most.Load() > 2 {
		t.Errorf("%d of 500 were admitted over %d connections", admitted.Load(), most.Load())
	}
}

// TestIdleConnections checks that MaxIdleConns connections remain open after a burst; by default, all of them.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	for idle, fits := range map[int]func(active int64) bool{
		3: func(active int64) bool { return active <= 3 },
		0: func(active int64) bool { return active > 3 },
	} {
		var active atomic.Int64
		b := run(t, Config{Servers: []string{s.Addr()}, MaxIdleConns: idle, OpTimeout: slow, Observer: remote.Observer{
			Connections: func(n int) { active.Store(int64(n)) },
		}}, true)
		testkit.Eventually(t, fmt.Sprint("the connections kept by a maximum of ", idle), func() bool {
			var crowd sync.WaitGroup
			for range 100 {
				crowd.Go(func() { one(b, "a") })
			}
			crowd.Wait()
			return fits(active.Load())
		})
	}
}

// TestSheds checks that a call that would wait too long for a connection is shed immediately, that Waits returns the expected wait, and
// that both end when the server is fast again.
func TestSheds(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	const timeout = time.Second
	b := run(t, Config{Servers: []string{p.Addr()}, MaxConns: 2, OpTimeout: timeout, DialTimeout: slow, Now: at(7200)}, true)
	call := func() []backend.Op {
		ops := make([]backend.Op, 64)
		for i := range ops {
			ops[i] = opOn(fmt.Sprint(i))
		}
		b.Apply(t.Context(), ops)
		return ops
	}
	if got := b.Waits(); len(got) != 1 || got[p.Addr()] != 0 {
		t.Errorf("at rest operations wait for %v, want 0 for one server", got)
	}
	p.Latency.Store(int64(time.Millisecond))
	var shed, early, waits atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				begun := time.Now()
				ops := call()
				took := time.Since(begun)
				for i := range ops {
					if e, ok := errors.AsType[*remote.Error](ops[i].Err); ok && errors.Is(e, backend.ErrShed) {
						shed.Add(1)
						if !errors.Is(e, backend.ErrUnsent) || ops[i].Decision != (engine.Decision{}) {
							t.Errorf("%+v, %+v", ops[i].Decision, e)
						}
						if took < timeout/2 {
							early.Add(1)
						}
					}
				}
				waits.Store(max(waits.Load(), int64(b.Waits()[p.Addr()])))
			}
		})
	}
	testkit.Eventually(t, "calls are shed early", func() bool { return early.Load() > 1000 })
	p.Latency.Store(0)
	stop() // otherwise a busy machine might remain slow
	wg.Wait()
	testkit.Eventually(t, "the server is seen to be quick again", func() bool {
		return !slices.ContainsFunc(call(), func(op backend.Op) bool { return op.Err != nil })
	})
	if waits := time.Duration(waits.Load()); waits < time.Millisecond || waits > 32*timeout { // at first all calls wait, for lack of an estimate
		t.Errorf("operations waited for up to %v", waits)
	}
	if got := b.Waits(); got[p.Addr()] != 0 {
		t.Errorf("at rest again operations wait for %v, want 0", got)
	}
}

// TestOutOfMemory: memcached -M returns an error when it is full, so no count is lost silently.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t, "-M", "-m", "2", "-I", "512k")
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow}, true)
	for i := range 200_000 {
		if op := one(b, fmt.Sprint(i)); op.Err != nil {
			if class(op) != remote.OOM {
				t.Errorf("counter %d: %v", i, op.Err)
			}
			return
		}
	}
	t.Error("it never is full")
}

// TestOverTLS uses a memcached with TLS that requires client certificates. Operations fail without a certificate, with another CA, or
// without TLS.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	certs, other := redistest.NewCertificates(t, "localhost"), redistest.NewCertificates(t, "localhost")
	s := memcachedtest.Start(t, "-Z", "-o", "ssl_chain_cert="+certs.Cert, "-o", "ssl_key="+certs.Key, "-o", "ssl_ca_cert="+certs.CA, "-o", "ssl_verify_mode=2")
	servers := []string{fmt.Sprintf("localhost:%d", s.Port())}
	b := run(t, Config{Servers: servers, TLS: remote.TLSFiles{CA: certs.CA, Cert: certs.Cert, Key: certs.Key}.Load, OpTimeout: slow, DialTimeout: slow, Now: at(7200)}, true)
	for want := range uint64(3) {
		if op := one(b, "a"); op.Err != nil || op.Decision.Left != 1e6-want {
			t.Fatalf("%+v, %v", op.Decision, op.Err)
		}
	}
	for name, c := range map[string]func() (*tls.Config, error){
		"no certificate": remote.TLSFiles{CA: certs.CA}.Load,
		"another CA":     remote.TLSFiles{CA: other.CA, Cert: certs.Cert, Key: certs.Key}.Load,
		"no TLS":         nil,
	} {
		if op := one(run(t, Config{Servers: servers, TLS: c, OpTimeout: slow}, false), "a"); op.Err == nil {
			t.Errorf("%s: %+v", name, op.Decision)
		}
	}
}

// TestUnresolvable: a server whose name does not resolve counts as down.
func TestUnresolvable(t *testing.T) {
	t.Parallel()
	b := run(t, Config{Servers: []string{"memcached.invalid:11211"}, OpTimeout: slow, DialTimeout: slow}, false)
	op := one(b, "a")
	if c := class(op); c != remote.Refused && c != remote.Timeout { // without DNS, the lookup may time out
		t.Errorf("%v", op.Err)
	}
}

// TestLogin checks that the error of a server that requires a login names this reason and the variable that the login comes from.
func TestLogin(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "users")
	if err := os.WriteFile(file, []byte("user:password\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := memcachedtest.Start(t, "-Y", file)
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow, DialTimeout: slow}, false)
	want := "the server requires a login, which is not supported: set MEMCACHE_HOST_PORT"
	testkit.Eventually(t, "the error of a login", func() bool { op := one(b, "a"); return op.Err != nil && strings.Contains(op.Err.Error(), want) })
}

// TestStrangeServers checks that invalid replies of any kind cause errors, none of which contains a key.
func TestStrangeServers(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"\n", "\r\n", "ERROR\r\n", "SERVER_ERROR busy\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "-1\r\n", "99999999999999999999999\r\n",
		"VALUE \r\n", "VALUE x 0 0\r\n\r\nEND\r\n", "ERROR Too many open connections\r\n", strings.Repeat("9", 10_000) + "\r\n", "", "1",
	} {
		l := testkit.Listen(t)
		testkit.Serve(t, l, func(c net.Conn) {
			for r := bufio.NewReader(c); ; {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				answer := reply
				if line == "version\r\n" {
					answer = "VERSION 1\r\n"
				}
				if _, err := io.WriteString(c, answer); err != nil || answer == "" || answer == "1" {
					return
				}
			}
		})
		b := run(t, Config{Servers: []string{l.Addr().String()}, OpTimeout: slow}, false)
		for _, mode := range []backend.Mode{backend.Take, backend.Refund, backend.Reset} {
			op := opOn("secret")
			op.Mode = mode
			if op = apply(b, op); op.Err == nil || strings.Contains(op.Err.Error(), "secret") {
				t.Errorf("%.30q, mode %d: %+v, %v", reply, mode, op.Decision, op.Err)
			}
		}
		looks := []backend.Op{opOn("secret"), opOn("secret2")}
		looks[0].Mode, looks[1].Mode = backend.Peek, backend.Peek
		b.Apply(t.Context(), looks)
		if err := looks[0].Err; err == nil && !strings.Contains(reply, "END") || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%.30q, looks: %+v, %v", reply, looks[0].Decision, err)
		}
	}
}

// TestUnsupported checks that an operation that memcached does not support fails only that op.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	b := run(t, Config{Servers: []string{s.Addr()}, OpTimeout: slow}, true)
	ops := []backend.Op{opOn("a"), opOn("b"), opOn("c"), opOn("d"), opOn("e"), opOn("f"), opOn("g")}
	ops[1].Penalty = &engine.Penalty{For: 1, Max: 1}
	ops[2].Limits[0].Algorithm = engine.TokenBucket
	ops[3].Limits[0].Align = engine.AlignFirst
	ops[4].Limits[0].CountRefused = false
	ops[5].Limits = append(ops[5].Limits, ops[5].Limits[0])
	ops[6].Limits = nil
	b.Apply(t.Context(), ops)
	for i := range ops {
		if want := i > 0; errors.Is(ops[i].Err, errFixedOnly) != want || (ops[i].Err != nil) != want {
			t.Errorf("op %d: %v", i, ops[i].Err)
		}
	}
}
