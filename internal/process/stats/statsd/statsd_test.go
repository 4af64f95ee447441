package statsd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// listener is a statsd server that records its input.
type listener struct {
	address string
	close   func()

	mu     sync.Mutex
	all    []string
	most   int // size of the largest datagram in bytes
	opened int // number of connections
}

func (l *listener) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *listener) take(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most = max(l.most, len(b))
	for line := range strings.Lines(string(b)) {
		l.all = append(l.all, strings.TrimSuffix(line, "\n"))
	}
}

// listenStream serves at an address until it is closed or the test ends.
func listenStream(t *testing.T, network, address string) *listener {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{address: ln.Addr().String()}
	var (
		wg    sync.WaitGroup
		conns []net.Conn // guarded by mu
	)
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			l.mu.Lock()
			conns = append(conns, conn)
			l.opened++
			l.mu.Unlock()
			wg.Go(func() {
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					l.take(lines.Bytes())
				}
			})
		}
	})
	l.close = sync.OnceFunc(func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		l.mu.Lock()
		for _, conn := range conns {
			_ = conn.Close() // the peer may have closed it
		}
		l.mu.Unlock()
		wg.Wait()
	})
	t.Cleanup(l.close)
	return l
}

func listenTCP(t *testing.T) *listener {
	t.Helper()
	return listenStream(t, "tcp", "127.0.0.1:0")
}

func listenUDP(t *testing.T) *listener {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{address: conn.LocalAddr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			l.take(b[:n])
		}
	})
	l.close = sync.OnceFunc(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
	t.Cleanup(l.close)
	return l
}

// No listener of a test can get this address, so connecting to it fails.
const nobody = "127.0.0.1:1"

// run runs a sink until the test ends or stop is called. stop returns the time that the sink took to end.
func run(t *testing.T, r *stats.Registry, log io.Writer, c Config) (stop func() time.Duration) {
	t.Helper()
	s := New(r, slog.New(slog.NewTextHandler(log, nil)), c)
	end := testkit.Run(t, s.Run)
	return func() time.Duration {
		begin := time.Now()
		end()
		return time.Since(begin)
	}
}

// counted returns a registry with values of every kind.
func counted() *stats.Registry {
	r := stats.New()
	rule := r.Rule(count.NewKey("shop", "user_u1", "path"))
	rule.TotalHits.Add(5)
	rule.WithinLimit.Add(3)
	rule.OverLimit.Add(2)
	rule.NearLimit.Add(1)
	r.Rule(count.NewKey("shop", "free")).UnlimitedHits.Add(7)
	r.Rule(count.NewKey("shop", "never"))
	r.Rule(count.NewKey("my.shop", "ip_10.0.0.1", "x:1|c")).ShadowMode.Add(1)
	r.Counter(stats.ConfigLoadSuccess).Add(1)
	r.Counter(stats.ConfigLoadError)
	r.Counter(stats.OverrideIgnoredTotal, "my.domain", "invalid").Add(4)
	r.Gauge(stats.RedisPoolActive, func() float64 { return 2 })
	r.Gauge(stats.LocalCacheEntryCount, func() float64 { return 0.5 })
	r.Gauge(stats.LocalCacheHitCount, func() float64 { return -1 })
	r.Source(func(v *stats.Values) {
		v.Counter(stats.GoNumGC, 9)
		v.Gauge(stats.GoNumGoroutine, 8)
	})
	r.ObserveCall("ShouldRateLimit", 0.0125)
	return r
}

// want returns the lines of counted, with a tag in every name.
func want(tag string) []string {
	return []string{
		"ratelimit.go.numGC" + tag + ":9|c",
		"ratelimit.go.numGoroutine" + tag + ":8|g",
		"ratelimit.localcache.entryCount" + tag + ":0.5|g",
		"ratelimit.localcache.hitCount" + tag + ":0|g",
		"ratelimit.redis_pool.cx_active" + tag + ":2|g",
		"ratelimit.service.config_load_success" + tag + ":1|c",
		"ratelimit.service.rate_limit.my.shop.ip_10_0_0_1.x_1_c.shadow_mode" + tag + ":1|c",
		"ratelimit.service.rate_limit.shop.user_u1.path.near_limit" + tag + ":1|c",
		"ratelimit.service.rate_limit.shop.user_u1.path.over_limit" + tag + ":2|c",
		"ratelimit.service.rate_limit.shop.user_u1.path.total_hits" + tag + ":5|c",
		"ratelimit.service.rate_limit.shop.user_u1.path.within_limit" + tag + ":3|c",
		"ratelimit_server.ShouldRateLimit.total_requests" + tag + ":1|c",
		"ratelimitd.unlimited_hits.shop.free" + tag + ":7|c",
	}
}

// isTime reports whether a line is counted's response time, 12.5 ms within the resolution of counts.
func isTime(line, tag, end string) bool {
	v, ok := strings.CutPrefix(line, "ratelimit_server.ShouldRateLimit.response_time"+tag+":")
	v, kind := strings.CutSuffix(v, "|ms"+end)
	ms, err := strconv.ParseFloat(v, 64)
	return ok && kind && err == nil && ms > 11.5 && ms < 13.5
}

func TestLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, network string
		tags          []stats.Label
		tag, ignored  string
	}{
		{"TCP", "tcp", nil, "", ".__domain=my_domain.__reason=invalid"},
		{"UDP", "udp", nil, "", ".__domain=my_domain.__reason=invalid"},
		{
			"extra tags, sorted, of which a series' own wins", "tcp",
			[]stats.Label{{Name: "version", Value: "1.2:3|x"}, {Name: "env", Value: "a\nb"}, {Name: "none", Value: ""}, {Name: "reason", Value: "z"}},
			".__env=a_b.__reason=z.__version=1_2_3_x", ".__domain=my_domain.__env=a_b.__reason=invalid.__version=1_2_3_x",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var l *listener
			if tt.network == "udp" {
				l = listenUDP(t)
			} else {
				l = listenTCP(t)
			}
			lines := append(want(tt.tag), "ratelimitd.override_ignored_total"+tt.ignored+":4|c")
			stop := run(t, counted(), t.Output(), Config{Network: tt.network, Address: l.address, Interval: time.Hour, Tags: tt.tags})
			testkit.Eventually(t, "the first flush", func() bool { return len(l.lines()) > len(lines) })
			got := l.lines()
			got = slices.DeleteFunc(got, func(line string) bool { return isTime(line, tt.tag, "") })
			slices.Sort(got)
			slices.Sort(lines)
			if d := cmp.Diff(lines, got); d != "" {
				t.Errorf("lines but for the time (-want +got):\n%s", d)
			}
			if len(l.lines()) != len(lines)+1 {
				t.Errorf("got %d lines, want %d", len(l.lines()), len(lines)+1)
			}
			stop()
		})
	}
}

// TestDeltasAndTheLastInterval: only increases and all gauges are sent, and the counts of the last interval when the
// sink ends.
func TestDeltasAndTheLastInterval(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			l := listenUDP(t)
			if network == "tcp" {
				l = listenTCP(t)
			}
			r := counted()
			stop := run(t, r, t.Output(), Config{Network: network, Address: l.address, Interval: time.Hour})
			testkit.Eventually(t, "the first flush", func() bool { return len(l.lines()) == 15 })
			r.Rule(count.NewKey("shop", "user_u1", "path")).TotalHits.Add(3)
			stop()
			testkit.Eventually(t, "the last flush", func() bool { return len(l.lines()) == 20 })
			got := l.lines()[15:]
			slices.Sort(got)
			if d := cmp.Diff([]string{
				"ratelimit.go.numGoroutine:8|g", "ratelimit.localcache.entryCount:0.5|g",
				"ratelimit.localcache.hitCount:0|g", "ratelimit.redis_pool.cx_active:2|g",
				"ratelimit.service.rate_limit.shop.user_u1.path.total_hits:3|c",
			}, got); d != "" {
				t.Errorf("the last flush (-want +got):\n%s", d)
			}
		})
	}
}

// sum returns the sum of a name's counts.
func sum(lines []string, name string) (n uint64) {
	for _, line := range lines {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			v, _ = strings.CutSuffix(v, "|c")
			add, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				panic(err)
			}
			n += add
		}
	}
	return n
}

// TestReconnect: counts during an outage of statsd are sent afterwards. Both events are logged once.
func TestReconnect(t *testing.T) {
	t.Parallel()
	address := filepath.Join(t.TempDir(), "s") // a socket, because another program, or the dialer itself, could use a port in the meantime
	r := stats.New()
	n := r.Counter(stats.PanicsTotal)
	n.Add(1)
	var log testkit.Buffer
	run(t, r, &log, Config{Network: "unix", Address: address, Interval: time.Millisecond, Retry: time.Millisecond})
	testkit.Eventually(t, "a line that no one listens", func() bool { return strings.Contains(log.String(), "cannot be sent") })
	n.Add(10)
	l := listenStream(t, "unix", address)
	testkit.Eventually(t, "both counts", func() bool { return sum(l.lines(), "ratelimitd.panics_total") == 11 })
	l.close()
	opened := l.opened
	testkit.Eventually(t, "the end of the connection", func() bool { // a closed connection is detected even without data to send
		ln := listenStream(t, "unix", address)
		defer ln.close()
		testkit.Eventually(t, "a new connection", func() bool { ln.mu.Lock(); defer ln.mu.Unlock(); return ln.opened > 0 })
		n.Add(100)
		testkit.Eventually(t, "what came on top", func() bool { return sum(ln.lines(), "ratelimitd.panics_total") == 100 })
		return true
	})
	if opened != 1 {
		t.Errorf("%d connections were opened where one does", opened)
	}
	if got := log.String(); strings.Count(got, "\n") > 3 || strings.Count(got, "cannot be sent") != 1 {
		t.Errorf("the log says more than once that no one listens:\n%s", got)
	}
}

func TestNobodyListens(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp", "udp"} {
		t.Run(network, func(t *testing.T) {
			t.Parallel()
			r := counted()
			var log testkit.Buffer
			stop := run(t, r, &log, Config{Network: network, Address: nobody, Interval: time.Millisecond, Retry: time.Millisecond})
			testkit.Eventually(t, "a line in the log", func() bool { return strings.Contains(log.String(), "USE_STATSD=false") })
			for range 100 {
				r.Counter(stats.PanicsTotal).Add(1)
				time.Sleep(time.Millisecond)
			}
			if took := stop(); took > testkit.Patience {
				t.Errorf("the end took %v", took)
			}
			if got := log.String(); strings.Count(got, "\n") != 1 {
				t.Errorf("the log has more than one line:\n%s", got)
			}
		})
	}
}

// TestHangingStatsd: a statsd server that accepts connections but does not read delays neither counting nor the end of
// the sink.
func TestHangingStatsd(t *testing.T) {
	t.Parallel()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() }) // without Accept, the kernel accepts connections and buffers data
	r := stats.New()
	long := strings.Repeat("x", 12000)
	fill := func() {
		for i := range 2000 { // 24 MB exceed the buffers
			r.Rule(count.Key{Text: long + strconv.Itoa(i)}).TotalHits.Add(1)
		}
	}
	fill()
	var log testkit.Buffer
	stop := run(t, r, &log, Config{Network: "tcp", Address: ln.Addr().String(), Interval: time.Millisecond})
	testkit.Eventually(t, "a write that times out", func() bool { return strings.Contains(log.String(), "cannot be sent") })
	fill()
	if took := stop(); took > 10*(writeTimeout+lastTimeout) {
		t.Errorf("the end took %v", took)
	}
}

// TestPartOfAFlush: if a connection breaks between two writes, nothing is lost or sent twice.
func TestPartOfAFlush(t *testing.T) {
	t.Parallel()
	s := New(stats.New(), slog.New(slog.DiscardHandler), Config{Network: "tcp"})
	ours, theirs := net.Pipe()
	defer ours.Close()
	s.conn = ours
	s.buffer = []byte("a:1|c\nb:22|c\nc:3|c\n")
	go func() { // accepts a and the beginning of b
		b := make([]byte, 8)
		_, _ = io.ReadFull(theirs, b)
		_ = theirs.Close()
	}()
	if err := s.write(t.Context(), 0); err == nil {
		t.Fatal("no error")
	}
	if got := string(s.buffer); got != "c:3|c\n" {
		t.Errorf("%q is kept, want the lines of which nothing was taken", got)
	}
}

func TestDatagrams(t *testing.T) {
	t.Parallel()
	l := listenUDP(t)
	r := stats.New()
	for i := range 500 {
		r.Rule(count.NewKey("shop", fmt.Sprintf("user_%d", i), strings.Repeat("x", i%200))).TotalHits.Add(1)
	}
	r.Rule(count.NewKey("shop", strings.Repeat("y", maxUDP))).TotalHits.Add(1)
	run(t, r, t.Output(), Config{Network: "udp", Address: l.address, Interval: time.Hour})
	testkit.Eventually(t, "every name that fits", func() bool { return len(l.lines()) >= 500 })
	if len(l.lines()) != 500 || l.most > 1432 || l.most < 1000 {
		t.Errorf("%d lines, the longest datagram has %d bytes; want 500 and at most, but about, 1432", len(l.lines()), l.most)
	}
}

// TestG8NoInjection: no value from a client can end a line or begin another.
func TestG8NoInjection(t *testing.T) {
	t.Parallel()
	for _, dog := range []bool{false, true} {
		l := listenTCP(t)
		r := stats.New()
		for _, v := range []string{"a\nb:1|c", "\r\nx:9|g", "\u2028y:1|c", "a|@0.1|#t:v,u", "\x00\x1b[31m", "a:b|c", "\xff\n\xfe", "\u202e\u009b\u2066"} {
			r.Rule(count.NewKey("evil", "k_"+v)).TotalHits.Add(1)
			r.Counter(stats.XDSEventsTotal, v).Add(1)
		}
		stop := run(t, r, t.Output(), Config{Network: "tcp", Address: l.address, Interval: time.Hour, Dog: dog})
		testkit.Eventually(t, "the lines", func() bool { return len(l.lines()) >= 16 })
		stop()
		for _, line := range l.lines() {
			name, value, _ := strings.Cut(line, ":")
			value, tags, _ := strings.Cut(value, "|#")
			prefix := strings.HasPrefix(name, "ratelimit.service.rate_limit.evil.k_") && strings.HasSuffix(name,
				".total_hits") || strings.HasPrefix(name, "ratelimitd.xds_events_total")
			if !prefix || value != "1|c" || strings.ContainsAny(line, "\x00\x1b\r\u2028\u202e\u009b\u2066") || strings.Count(tags, ",") > 0 {
				t.Errorf("bad line %q", line)
			}
		}
		if n := len(l.lines()); n != 16 {
			t.Errorf("%d lines, want 16: %q", n, l.lines())
		}
	}
}

// BenchmarkCounting: the cost of counting is the same with a sink that sends all the time, with one that has no
// connection, and without a sink.
func BenchmarkCounting(b *testing.B) {
	ln, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	for _, bb := range []struct{ name, address string }{{"alone", ""}, {"sink", ln.Addr().String()}, {"nobody listens", nobody}} {
		b.Run(bb.name, func(b *testing.B) {
			r := stats.New()
			n := r.Rule(count.NewKey("shop", "user"))
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			if bb.address != "" {
				s := New(r, slog.New(slog.DiscardHandler), Config{Network: "tcp", Address: bb.address, Interval: 10 * time.Millisecond})
				wg.Go(func() { _ = s.Run(ctx) }) // never returns an error
			}
			b.ReportAllocs()
			for b.Loop() {
				n.TotalHits.Add(1)
				n.WithinLimit.Add(1)
				r.ObserveCall("ShouldRateLimit", 0.0003)
			}
			cancel()
			wg.Wait()
		})
	}
}
