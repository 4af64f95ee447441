package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves h on a free port until the test ends, and returns its address and its log.
func start(t *testing.T, h http.Handler, l web.Limits) (addr string, log *testkit.Buffer) {
	t.Helper()
	return startOn(t, testkit.Listen(t), h, l)
}

func startOn(t *testing.T, ln net.Listener, h http.Handler, l web.Limits) (addr string, log *testkit.Buffer) {
	t.Helper()
	log = new(testkit.Buffer)
	s := web.NewServer("test", ln, h, slog.New(slog.NewTextHandler(log, nil)), l)
	testkit.Run(t, s.Run)
	return ln.Addr().String(), log
}

// echo returns a healthy main listener whose /json returns its input.
func echo() web.Main {
	return web.Main{
		JSON: func(_ context.Context, body []byte) (int, string, []byte) {
			return http.StatusOK, "application/json", body
		},
		Healthy:    func() bool { return true },
		Components: func() []health.Component { return nil },
		NotReady:   func() []string { return nil },
	}
}

// dial opens a connection for the test to write and read.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

// raw sends text, with lines that end with \n, as the only data on a connection, and returns the statuses of at most n
// answers.
func raw(t *testing.T, addr, text string, n int) (statuses []int) {
	t.Helper()
	c := dial(t, addr)
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "\n", "\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite() // a rejected client may be disconnected already, but the answer has arrived
	r := bufio.NewReader(c)
	for range n {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			break
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		statuses = append(statuses, resp.StatusCode)
	}
	return statuses
}

type answer struct {
	Status int
	Type   string
	Body   string
}

// do sends a request on a new connection.
func do(t *testing.T, method, url, body string, header ...string) answer {
	t.Helper()
	got, err := try(t, method, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// try is do for a server that may find the request too slow and not answer.
func try(t *testing.T, method, url, body string, header ...string) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Content-Type"), string(b)}, err
}

const plainText = "text/plain; charset=utf-8"

func TestMainPages(t *testing.T) {
	m := echo()
	addr, _ := start(t, web.MainHandler(m), web.Limits{})
	for _, tt := range []struct {
		method, path, body string
		want               answer
	}{
		{"POST", "/json", `{"a":1}`, answer{200, "application/json", `{"a":1}`}},
		{"POST", "/json?x=y", `{"a":1}`, answer{200, "application/json", `{"a":1}`}},
		{"GET", "/healthcheck", "", answer{200, plainText, "OK"}},
		{"POST", "/healthcheck", "x", answer{200, plainText, "OK"}},
		{"GET", "/livez", "", answer{200, plainText, "OK"}},
		{"GET", "/readyz", "", answer{200, plainText, "OK"}},
		{"GET", "/nothing-here", "", answer{404, plainText, "404 page not found\n"}},
		{"GET", "/", "", answer{404, plainText, "404 page not found\n"}},
		{"GET", "/healthcheck/", "", answer{404, plainText, "404 page not found\n"}},
		{"GET", "/debug/pprof/", "", answer{404, plainText, "404 page not found\n"}},
	} {
		if diff := cmp.Diff(tt.want, do(t, tt.method, "http://"+addr+tt.path, tt.body)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", tt.method, tt.path, diff)
		}
	}
}

func TestHealthPages(t *testing.T) {
	since := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	m := echo()
	m.Healthy = func() bool { return false }
	m.NotReady = func() []string { return []string{"no rules are loaded", "the server is draining"} }
	m.Components = func() []health.Component {
		return []health.Component{
			{Name: "config", Since: since, LastError: "no such file"},
			{Name: "redis", OK: true, Since: since.Add(time.Minute)},
			{Name: "rules", Degraded: true, Since: since, LastError: "rejected"},
		}
	}
	addr, _ := start(t, web.MainHandler(m), web.Limits{})
	for _, tt := range []struct {
		path, accept string
		want         answer
	}{
		{"/healthcheck", "", answer{500, "", ""}},
		{"/livez", "", answer{200, plainText, "OK"}},
		{"/readyz", "", answer{503, plainText, "no rules are loaded\nthe server is draining\nrules: rejected\n"}},
		{"/healthcheck?verbose", "", answer{500, plainText, "failing\n" +
			"config: failing since 2026-11-20T10:00:00Z, last error: no such file\nredis: OK since 2026-11-20T10:01:00Z\n" +
			"rules: degraded since 2026-11-20T10:00:00Z, last error: rejected\n"}},
		{"/healthcheck?verbose", "application/json", answer{500, "application/json", `{"ok":false,"components":[` +
			`{"name":"config","ok":false,"since":"2026-11-20T10:00:00Z","last_error":"no such file"},` +
			`{"name":"redis","ok":true,"since":"2026-11-20T10:01:00Z"},` +
			`{"name":"rules","ok":false,"degraded":true,"since":"2026-11-20T10:00:00Z","last_error":"rejected"}]}` + "\n"}},
	} {
		if diff := cmp.Diff(tt.want, do(t, "GET", "http://"+addr+tt.path, "", "Accept", tt.accept)); diff != "" {
			t.Errorf("%s, Accept: %s (-want +got):\n%s", tt.path, tt.accept, diff)
		}
	}
}

// TestPanic: if a handler panics, the client loses its connection, and the panic is logged.
func TestPanic(t *testing.T) {
	m := echo()
	m.JSON = func(context.Context, []byte) (int, string, []byte) { panic("a bug") }
	addr, log := start(t, web.MainHandler(m), web.Limits{})
	if got := raw(t, addr, "POST /json HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}", 1); len(got) != 0 {
		t.Errorf("a panic was answered %v; want the connection closed", got)
	}
	if got := do(t, "GET", "http://"+addr+"/healthcheck", ""); got.Status != 200 {
		t.Errorf("after a panic /healthcheck answers %v", got)
	}
	if got := log.String(); !strings.Contains(got, "a bug") || !strings.Contains(got, "listener=test") {
		t.Errorf("the log does not tell of the panic: %q", got)
	}
}

// TestStop: a request in progress when the server stops is answered within Grace, and cut off after that.
func TestStop(t *testing.T) {
	for name, tt := range map[string]struct {
		grace time.Duration
		want  []int
	}{
		"finishes what runs":  {time.Minute, []int{200}},
		"cuts off what hangs": {10 * time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m, entered, release := echo(), make(chan struct{}), make(chan struct{})
			m.JSON = func(ctx context.Context, body []byte) (int, string, []byte) {
				close(entered)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return http.StatusOK, "application/json", body
			}
			ln := testkit.Listen(t)
			s := web.NewServer("test", ln, web.MainHandler(m), slog.New(slog.DiscardHandler), web.Limits{Grace: tt.grace})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.Run(ctx) }()
			got := make(chan []int, 1)
			c := dial(t, ln.Addr().String())
			if _, err := io.WriteString(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
				t.Fatal(err)
			}
			go func() {
				b, _ := io.ReadAll(c) // fails if the request is cut off
				got <- statuses(string(b))
			}()
			<-entered
			cancel()
			if tt.want != nil {
				close(release)
			}
			if err := <-ended; err != nil {
				t.Errorf("Run: %v", err)
			}
			if diff := cmp.Diff(tt.want, <-got); diff != "" {
				t.Errorf("statuses (-want +got):\n%s", diff)
			}
			if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the port is still open: %v", err)
			}
		})
	}
}

// TestRunError: if a listener fails, Run returns an error that names it.
func TestRunError(t *testing.T) {
	ln := testkit.Listen(t)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	s := web.NewServer("http", ln, web.MainHandler(echo()), slog.New(slog.DiscardHandler), web.Limits{})
	want := fmt.Sprintf("serving http on %s: ", ln.Addr())
	if err := s.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("Run = %v; want an error that begins with %q", err, want)
	}
}
