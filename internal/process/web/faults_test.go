package web_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// A body of 1 MiB is accepted and one byte more is rejected, whether its length is stated or not, unless another limit is
// set; an endless body is not read much further than that.
func TestH01_BodyLimit(t *testing.T) {
	addr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	url := "http://" + addr + "/json"
	if got := do(t, "POST", url, strings.Repeat(" ", 1<<20)); got.Status != 200 || len(got.Body) != 1<<20 {
		t.Errorf("a body of 1 MiB: %d with %d bytes; want 200 with all of them", got.Status, len(got.Body))
	}
	m := echo()
	m.MaxBody = 100
	short, _ := start(t, web.MainHandler(m), web.Limits{})
	for size, want := range map[int]int{100: http.StatusOK, 101: http.StatusRequestEntityTooLarge} {
		if got := do(t, "POST", "http://"+short+"/json", strings.Repeat(" ", size)); got.Status != want {
			t.Errorf("%d bytes where 100 are allowed: %d; want %d", size, got.Status, want)
		}
	}

	t.Run("stated", func(t *testing.T) {
		c := dial(t, addr)
		// No byte of the body follows: the length is enough to reject it.
		if _, err := io.WriteString(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, c, http.StatusRequestEntityTooLarge)
		wantClosed(t, c)
	})
	t.Run("chunked, endless", func(t *testing.T) {
		c := dial(t, addr)
		if _, err := io.WriteString(c, "POST /json HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		chunk := "10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n"
		sent := 0
		var wg sync.WaitGroup
		wg.Go(func() {
			for ; ; sent += 0x10000 {
				if _, err := io.WriteString(c, chunk); err != nil {
					return // rejected
				}
			}
		})
		wantStatus(t, c, http.StatusRequestEntityTooLarge)
		_ = c.Close()
		wg.Wait()
		if sent > 64<<20 {
			t.Errorf("%d bytes were taken before the rejection", sent)
		}
	})
}

// A client that sends a large body slowly keeps no other large one waiting. While four do, a further one waits for a while
// and is rejected with a reason; small ones are answered.
func TestH11_SlowLargeBodies(t *testing.T) {
	t.Parallel()
	addr, _ := start(t, web.MainHandler(echo()), web.Limits{Read: testkit.Patience})
	large := func() answer { return do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", 16<<10+1)) }
	var slow []net.Conn
	for range 4 {
		if got := large(); got.Status != http.StatusOK {
			t.Errorf("a large body beside %d slow ones: %d %.100s; want 200", len(slow), got.Status, got.Body)
		}
		c := dial(t, addr)
		if _, err := io.WriteString(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"+strings.Repeat(" ", 99_999)); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	want := answer{http.StatusServiceUnavailable, plainText, "too many requests with a body of more than 16 KiB at once; try again later\n"}
	testkit.Eventually(t, "a large body is rejected", func() bool { return large() == want }) // the slow ones may arrive later
	if got := do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", 16<<10)); got.Status != http.StatusOK {
		t.Errorf("a body of 16 KiB: %d %.100s; want 200", got.Status, got.Body)
	}
	for _, c := range slow {
		if _, err := io.WriteString(c, " "); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, c, http.StatusOK)
	}
	if got := large(); got.Status != http.StatusOK {
		t.Errorf("a large body afterwards: %d %.100s; want 200", got.Status, got.Body)
	}
}

// Large bodies are decided one at a time.
func TestH11_OneAtATime(t *testing.T) {
	t.Parallel()
	m := echo()
	var deciding, most atomic.Int32
	m.JSON = func(context.Context, []byte) (int, string, []byte) {
		n := deciding.Add(1)
		defer deciding.Add(-1)
		most.Store(max(most.Load(), n))
		for range 1000 { // so that others come if they can
			runtime.Gosched()
		}
		return http.StatusOK, plainText, nil
	}
	addr, _ := start(t, web.MainHandler(m), web.Limits{})
	var wg sync.WaitGroup
	for _, size := range []int{17 << 10, 256 << 10, 256<<10 + 1, 1 << 20, 1 << 20, 300_000} {
		wg.Go(func() {
			if got := do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", size)); got.Status != http.StatusOK {
				t.Errorf("%d bytes: %d %.100s; want 200", size, got.Status, got.Body)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d bodies were decided at the same time, want 1", most.Load())
	}
}

func wantStatus(t *testing.T, c net.Conn, want int) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReaderSize(c, 16), nil)
	if err != nil {
		t.Fatalf("want an answer %d: %v", want, err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != want {
		t.Errorf("status %d; want %d", resp.StatusCode, want)
	}
}

// wantClosed reads until the other side closes c.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection stays open")
	}
}

// A client that is slow to send the head or the body, or between requests, loses its connection, and 200 such clients
// do not hinder others.
func TestH02_Slow(t *testing.T) {
	const soon = 300 * time.Millisecond
	// The other limits are longer than this process could ever stand still, so that only the one under test can expire.
	limits := func(change func(*web.Limits)) web.Limits {
		l := web.Limits{ReadHeader: time.Minute, Read: time.Minute, Write: time.Minute, Idle: time.Minute}
		change(&l)
		return l
	}
	for _, tt := range []struct {
		name, send string
		answers    []int // before the end
		limits     web.Limits
	}{
		{"head", "POST /json HTTP/1.1\r\nHost:", nil, limits(func(l *web.Limits) { l.ReadHeader = soon })},
		{"body", "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", []int{408}, limits(func(l *web.Limits) { l.Read = soon })},
		{"idle", "GET /healthcheck HTTP/1.1\r\nHost: x\r\n\r\n", []int{200}, limits(func(l *web.Limits) { l.Idle = soon })},
		{"nothing at all", "", nil, limits(func(l *web.Limits) { l.ReadHeader = soon })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			addr, _ := start(t, web.MainHandler(echo()), tt.limits)
			begin := time.Now()
			var wg sync.WaitGroup
			for range 200 {
				c := dial(t, addr)
				wg.Go(func() {
					if _, err := io.WriteString(c, tt.send); err != nil {
						t.Errorf("writing: %v", err)
					}
					b, err := io.ReadAll(c)
					if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("the connection stays open")
					}
					if diff := cmp.Diff(tt.answers, statuses(string(b))); diff != "" {
						t.Errorf("answers before the end (-want +got):\n%s", diff)
					}
				})
			}
			testkit.Eventually(t, "another client is answered", func() bool { // this client is slow too if it is kept from writing for that long
				got, err := try(t, "POST", "http://"+addr+"/json", "{}")
				return err == nil && got.Status == 200
			})
			wg.Wait()
			if d := time.Since(begin); d < soon || d > soon+testkit.Patience {
				t.Errorf("closed after %v; want %v", d, soon)
			}
		})
	}
}

// statuses returns the statuses of the answers in a stream of bytes.
func statuses(b string) (got []int) {
	r := bufio.NewReader(strings.NewReader(b))
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return got
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		got = append(got, resp.StatusCode)
	}
}

// The default limits.
func TestH02_Defaults(t *testing.T) {
	want := web.Limits{
		ReadHeader: 5 * time.Second, Read: 10 * time.Second, Write: 30 * time.Second, Idle: 60 * time.Second, Grace: 5 * time.Second,
	}
	s := web.NewServer("test", nil, nil, slog.New(slog.DiscardHandler), web.Limits{})
	if diff := cmp.Diff(want, web.LimitsOf(s)); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// Any content type is accepted, and only POST is allowed.
func TestH05_Methods(t *testing.T) {
	addr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "FOO"} {
		if got := do(t, method, "http://"+addr+"/json", ""); got.Status != http.StatusMethodNotAllowed {
			t.Errorf("%s /json: %v; want 405", method, got)
		}
	}
	for _, contentType := range []string{"", "text/plain", "application/x-www-form-urlencoded", "no type / at all"} {
		if got := do(t, "POST", "http://"+addr+"/json", "{}", "Content-Type", contentType); got.Status != 200 {
			t.Errorf("Content-Type %q: %v; want 200", contentType, got)
		}
	}
}

// Where a proxy in front of us could see another end of a request than net/http does, no second request ever comes out of
// it, whichever of the two is right.
func TestH05_Smuggling(t *testing.T) {
	addr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	const (
		post   = "POST /json HTTP/1.1\nHost: x\n"
		old    = "POST /json HTTP/1.0\nConnection: keep-alive\n"
		chunks = "Transfer-Encoding: chunked\n"
		second = "GET /healthcheck HTTP/1.1\nHost: x\n\n"
		inside = "26\n" + second + "\n0\n\n" // second as a chunk; the line before it has 4 bytes
	)
	for _, tt := range []struct {
		name, send string
		want       []int
	}{
		{"one length", post + "Content-Length: 2\n\n{}" + second, []int{200, 200}},
		{"one length twice", post + "Content-Length: 2\nContent-Length: 2\n\n{}" + second, []int{200, 200}},
		{"two lengths", post + "Content-Length: 2\nContent-Length: 40\n\n{}" + second, []int{400}},
		{"two lengths, the longer first", post + "Content-Length: 40\nContent-Length: 2\n\n{}" + second, []int{400}},
		{"one length in two spellings", post + "Content-Length: 2\nContent-Length: 02\n\n{}" + second, []int{400}},
		{"a list of lengths", post + "Content-Length: 2, 2\n\n{}" + second, []int{400}},
		{"a signed length", post + "Content-Length: +2\n\n{}" + second, []int{400}},
		{"space before the colon", post + "Content-Length : 2\n\n{}" + second, []int{400}},
		{"chunked", post + chunks + "\n2\n{}\n0\n\n", []int{200}},
		{"chunked ends the connection", post + chunks + "\n2\n{}\n0\n\n" + second, []int{200}},
		{"chunked, unread", "POST /nowhere HTTP/1.1\nHost: x\n" + chunks + "\n2\n{}\n0\n\n" + second, []int{404}},
		{"a length beyond the chunks", post + "Content-Length: 43\n" + chunks + "\n0\n\n" + second, []int{200}},
		{"the same, turned around", post + chunks + "Content-Length: 43\n\n0\n\n" + second, []int{200}},
		{"the same, spelled oddly", post + "transfer-ENCODING: chunked\ncontent-length:43\n\n0\n\n" + second, []int{200}},
		{"the same, in the second of two", post + "Content-Length: 2\n\n{}" + post + "Content-Length: 43\n" + chunks + "\n0\n\n" + second, []int{200, 200}},
		{"chunks beyond the length", post + "Content-Length: 4\n" + chunks + "\n" + inside, []int{200}},
		{"chunks that are none", post + "Content-Length: 2\n" + chunks + "\n{}" + second, []int{400}},
		{"chunked twice", post + chunks + chunks + "\n0\n\n" + second, []int{501}},
		{"another coding", post + "Transfer-Encoding: gzip, chunked\n\n0\n\n" + second, []int{501}},
		{"old protocol", old + "Content-Length: 2\n\n{}" + second, []int{200}},
		{"old protocol, chunks beyond the length", old + "Content-Length: 4\n" + chunks + "\n" + inside, []int{200}},
		{"old protocol, chunks and no length", "GET /healthcheck HTTP/1.0\nConnection: keep-alive\n" + chunks + "\n" + second, []int{200}},
		{"expectations", post + "Expect: 200-ok\nContent-Length: 2\n\n{}", []int{417}},
		{"continue", post + "Expect: 100-continue\nContent-Length: 2\n\n{}", []int{100, 200}},
		{"no host", "POST /json HTTP/1.1\nContent-Length: 2\n\n{}", []int{400}},
		{"options of the server", "OPTIONS * HTTP/1.1\nHost: x\n\n", []int{404}},
		{"HTTP/2", "PRI * HTTP/2.0\n\nSM\n\n", []int{404}},
	} {
		if diff := cmp.Diff(tt.want, raw(t, addr, tt.send, 3)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// A web page cannot use the browsers of those who look at it: what it posts is rejected on each listener, whatever its
// type, and profiles even if it only gets them, or has its own name lead here. Programs and pages of this server can.
func TestH13_WebPages(t *testing.T) {
	mainAddr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	debug := pages()
	debug.Admin = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	debugAddr, _ := start(t, web.DebugHandler(debug), web.Limits{})
	promAddr, _ := start(t, web.MetricsHandler("/metrics", pages().Metrics), web.Limits{})
	const (
		elsewhere = "Origin: https://evil.example\nContent-Type: text/plain\n"
		crossSite = "Sec-Fetch-Site: cross-site\nSec-Fetch-Mode: no-cors\nContent-Type: text/plain\n"
		sameSite  = "Sec-Fetch-Site: same-site\nOrigin: http://localhost:3000\n"
		own       = "Sec-Fetch-Site: same-origin\nOrigin: http://localhost:8080\n"
		typed     = "Sec-Fetch-Site: none\n"
		program   = "Content-Type: text/plain\n"
	)
	for _, tt := range []struct {
		addr, ask, host, headers string
		want                     int
	}{
		{mainAddr, "POST /json", "localhost:8080", elsewhere, 403},
		{mainAddr, "POST /json", "ratelimit.svc", elsewhere, 403},
		{mainAddr, "POST /json", "10.0.0.1:8080", crossSite, 403},
		{mainAddr, "POST /json", "localhost:8080", sameSite, 403},
		{mainAddr, "POST /json", "localhost:8080", "Origin: null\n", 403},
		{mainAddr, "POST /json", "localhost:8080", own, 200},
		{mainAddr, "POST /json", "localhost:8080", "Origin: http://localhost:8080\n", 200},
		{mainAddr, "POST /json", "ratelimit.svc", program, 200},
		{mainAddr, "POST /json", "ratelimit.svc", "", 200},
		{mainAddr, "POST /healthcheck", "localhost", crossSite, 403},
		{mainAddr, "GET /healthcheck", "localhost", crossSite, 200},
		{promAddr, "POST /metrics", "localhost", elsewhere, 403},
		{promAddr, "GET /metrics", "ratelimit.svc", program, 200},
		{debugAddr, "POST /rlconfig", "localhost", elsewhere, 403},
		{debugAddr, "GET /rlconfig", "ratelimit.svc", "", 200},
		{debugAddr, "GET /debug/pprof/heap", "localhost:6070", crossSite, 403},
		{debugAddr, "GET /debug/pprof/heap", "localhost:6070", sameSite, 403},
		{debugAddr, "GET /debug/pprof/heap", "localhost:6070", elsewhere, 403},
		{debugAddr, "POST /debug/pprof/symbol", "127.0.0.1:6070", crossSite, 403},
		{debugAddr, "GET /debug/pprof/heap", "evil.example:6070", "Sec-Fetch-Site: same-origin\n", 403},
		{debugAddr, "GET /debug/pprof/heap", "evil.example", "", 403},
		{debugAddr, "GET /debug/pprof/heap", "localhost.evil.example", "", 403},
		{debugAddr, "GET /debug/pprof/heap", "localhost:6070", typed, 200},
		{debugAddr, "GET /debug/pprof/heap", "LOCALHOST", "", 200},
		{debugAddr, "GET /debug/pprof/heap", "127.0.0.1:6070", "", 200},
		{debugAddr, "GET /debug/pprof/heap", "[::1]:6070", "", 200},
		{debugAddr, "GET /debug/pprof/heap", "[::1]", "", 200},
		{debugAddr, "POST /admin/v1/block", "localhost:6070", elsewhere, 403},
		{debugAddr, "GET /admin/v1/status", "localhost:6070", crossSite, 403},
		{debugAddr, "POST /admin/v1/block", "evil.example", "", 403},
		{debugAddr, "POST /admin/v1/block", "localhost:6070", program, 200},
	} {
		send := tt.ask + " HTTP/1.1\nHost: " + tt.host + "\n" + tt.headers + "Content-Length: 0\n\n"
		if diff := cmp.Diff([]int{tt.want}, raw(t, tt.addr, send, 1)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", send, diff)
		}
	}
}

func TestH06_Paths(t *testing.T) {
	mainAddr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	debugAddr, _ := start(t, web.DebugHandler(pages()), web.Limits{})
	promAddr, _ := start(t, web.MetricsHandler("/metrics", pages().Metrics), web.Limits{})
	for _, target := range []string{
		"/../debug", "//debug", "/%2e%2e/debug", "/%2e%2e", "http://x/json", "http://x/debug/pprof/", "http://x/metrics",
		"/./json", "/json/../healthcheck", "/json/../debug/pprof/", "/%6ason", "/debug/%70prof/", "//debug/pprof/heap", "//json",
		`/..\debug`, "//metrics", "/debug/../debug/pprof/heap", "/rlconfig/..//debug/pprof/heap", "/metrics/../debug/pprof/",
	} {
		for name, addr := range map[string]string{"main": mainAddr, "debug": debugAddr, "prometheus": promAddr} {
			got := raw(t, addr, "GET "+target+" HTTP/1.1\nHost: x\n\n", 1)
			if diff := cmp.Diff([]int{http.StatusNotFound}, got); diff != "" {
				t.Errorf("%s listener, %s (-want +got):\n%s", name, target, diff)
			}
		}
	}
}

// Heads of up to 16 KiB are accepted; larger ones are not read to the end.
func TestH10_HeaderFlood(t *testing.T) {
	addr, _ := start(t, web.MainHandler(echo()), web.Limits{})
	head := func(size int) string {
		const fixed = len("GET /healthcheck HTTP/1.1\r\nHost: x\r\nX-Fill: \r\n\r\n")
		return "GET /healthcheck HTTP/1.1\r\nHost: x\r\nX-Fill: " + strings.Repeat("a", size-fixed) + "\r\n\r\n"
	}
	for _, tt := range []struct {
		name, send string
		want       int
	}{
		{"just below 16 KiB", head(16<<10 - 1), 200},
		{"just above 16 KiB", head(16<<10 + 1), http.StatusRequestHeaderFieldsTooLarge},
		{"one of 1 MiB", head(1 << 20), http.StatusRequestHeaderFieldsTooLarge},
		{"many", "GET /healthcheck HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-A: b\r\n", 1<<17) + "\r\n", http.StatusRequestHeaderFieldsTooLarge},
		{"a long target", "GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := dial(t, addr)
			var wg sync.WaitGroup
			wg.Go(func() { _, _ = io.WriteString(c, tt.send) }) // the other side may close the connection before all is sent
			wantStatus(t, c, tt.want)
			_ = c.Close()
			wg.Wait()
		})
	}
}
