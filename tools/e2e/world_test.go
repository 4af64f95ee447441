package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"gopkg.in/yaml.v3"
)

// world is the environment of a case: it starts servers, which end with the case, and records measurements.
type world struct {
	*testing.T

	program string // the server
	other   bool   // whether program is not ratelimitd
	rand    *rand.Rand
	result  *result

	services []*service
	proxies  []*proxy
	identity []tls.Certificate // client certificate of the case for a server with TLS
}

// play runs a case, and records its result, even if it is aborted.
func play(t *testing.T, x example, program string, r *result) {
	t.Helper()
	program, err := filepath.Abs(program)
	testkit.Check(t, err)
	h := fnv.New64a()
	h.Write([]byte(x.name))
	w := &world{T: t, program: program, other: r.other, rand: rand.New(rand.NewPCG(uint64(*seed), h.Sum64())), result: r}
	defer func() {
		if t.Failed() {
			r.bad = true
			r.said = append(r.said, "**failed, as logged**")
		}
		if r.bad {
			w.explain()
		}
	}()
	if !since(x.since) {
		w.got(true, "not played, as it needs Envoy 1.%d", x.since)
		r.weak = true
		return
	}
	x.play(w)
}

// explain describes the ends of the proxies' calls without answers, and logs the servers' output.
func (w *world) explain() {
	w.Helper()
	for i, p := range w.proxies {
		if trouble := p.trouble(); len(trouble) > 0 {
			text := fmt.Sprintf("proxy %d: %s", i+1, strings.Join(trouble, ", "))
			w.result.said = append(w.result.said, text)
			w.Log(text)
		}
	}
	if w.other {
		return
	}
	for i, s := range w.services {
		w.Logf("server %d printed:\n%s", i+1, s.Output())
	}
}

// got records a measurement, and whether it meets the expectation. Another server is not judged.
func (w *world) got(good bool, format string, args ...any) {
	w.Helper()
	text := fmt.Sprintf(format, args...)
	if !good {
		w.result.bad = true
		if !w.other {
			w.Errorf("not as expected: %s", text)
		}
		text = "**" + text + "**"
	}
	w.result.said = append(w.result.said, text)
}

// service is a running rate-limit service.
type service struct {
	*testkit.Server

	conn  *grpc.ClientConn
	rules string // file; empty for an example's rules
}

// serve starts the server with rules and environment variables such as REDIS_URL. Lines that end in #+ are extensions,
// which it removes for another server.
func (w *world) serve(rules string, env ...string) *service {
	w.Helper()
	var kept strings.Builder
	for line := range strings.Lines(rules) {
		if !w.other || !strings.HasSuffix(strings.TrimSpace(line), "#+") {
			kept.WriteString(line)
		}
	}
	root := w.TempDir()
	testkit.Check(w, os.MkdirAll(filepath.Join(root, "config"), 0o700))
	file := filepath.Join(root, "config", "rules.yaml")
	testkit.Check(w, os.WriteFile(file, []byte(kept.String()), 0o600))
	s := w.start(append([]string{
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"USE_STATSD=false", "LOG_LEVEL=warn", "DRAIN_DELAY=0s", "EXPIRATION_JITTER_MAX_SECONDS=0",
	}, env...))
	s.rules = file
	return s
}

// serveExample starts the server with the rules and the environment of an example.
func (w *world) serveExample(name string) *service {
	w.Helper()
	dir := filepath.Join("..", "..", "examples", name)
	var compose struct {
		Services struct {
			Ratelimitd struct{ Environment map[string]string }
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &compose)
	}
	env := compose.Services.Ratelimitd.Environment
	root := w.TempDir()
	if err == nil {
		err = os.CopyFS(filepath.Join(root, env["RUNTIME_APPDIRECTORY"]), os.DirFS(filepath.Join(dir, "rules")))
	}
	testkit.Check(w, err)
	env["RUNTIME_ROOT"], env["DRAIN_DELAY"], env["ADMIN"] = root, "0s", "true" // to look at counters
	var all []string
	for name, value := range env {
		all = append(all, name+"="+value)
	}
	return w.start(all)
}

// start starts the server on a free port.
func (w *world) start(env []string) *service {
	w.Helper()
	s := new(service)
	creds := insecure.NewCredentials()
	if slices.Contains(env, withTLS[0]) {
		creds = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, Certificates: w.identity}) //nolint:gosec // it is this test's, on loopback
	}
	s.Server = testkit.Start(w, &testkit.Program{
		Name: "env", Package: "coreutils", // for a program with its own environment
		Args: func(port int) []string {
			all := append([]string{"-i", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "DEBUG_PORT=0"}, env...)
			return append(all, fmt.Sprintf("GRPC_PORT=%d", port), w.program)
		},
		Ready: func(at *testkit.Server, _ string) bool {
			conn, err := grpc.NewClient(at.Addr(), grpc.WithTransportCredentials(creds))
			if err != nil {
				return false
			}
			defer conn.Close()
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			defer cancel()
			answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"})
			return err == nil && answer.GetStatus() == healthpb.HealthCheckResponse_SERVING
		},
	})
	var err error
	if s.conn, err = grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(creds)); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { s.conn.Close() })
	w.services = append(w.services, s)
	return s
}

// terminate sends SIGTERM to the server like an orchestrator, and waits until it has exited successfully.
func (s *service) terminate(w *world) {
	w.Helper()
	err := s.Signal(syscall.SIGTERM)
	testkit.Eventually(w, "the server ends", s.Over, s.Output)
	if err = errors.Join(err, s.Wait()); err != nil {
		w.got(false, "a server that is told to end fails: %v", err)
	}
}

// metrics returns the server's metrics by name and labels.
func (s *service) metrics(w *world) map[string]float64 {
	w.Helper()
	_, text, err := testkit.Fetch(w.Context(), http.MethodGet, "http://"+testkit.Addresses("\n" + s.Output())["DEBUG"]+"/metrics", "")
	testkit.Check(w, err)
	return proc.Series(text)
}

// redis starts a Redis, and returns it with the variable for its address.
func (w *world) redis() (*redistest.Server, string) {
	w.Helper()
	r := redistest.Start(w.T)
	return r, "REDIS_URL=" + r.Addr()
}

// upstream is an application that counts requests.
type upstream struct {
	*httptest.Server

	mu   sync.Mutex
	seen map[string]int // by x-user
}

// upstream starts an application.
func (w *world) upstream(answer http.HandlerFunc) *upstream {
	u := &upstream{seen: map[string]int{}}
	u.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		u.mu.Lock()
		u.seen[r.Header.Get("x-user")]++
		u.mu.Unlock()
		answer(out, r)
	}))
	w.Cleanup(u.Close)
	return u
}

func hello(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") }

// of counts the requests of a user at the upstream.
func (u *upstream) of(user string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen[user]
}

// all counts the requests at the upstream.
func (u *upstream) all() (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.seen {
		n += m
	}
	return n
}

// answer is an HTTP response.
type answer struct {
	status int
	header http.Header
	asked  time.Time
	took   time.Duration
}

// ask makes a request as a user, and reads the whole answer.
func (w *world) ask(p *proxy, path, user string) answer {
	w.Helper()
	header := http.Header{}
	if user != "" {
		header.Set("x-user", user)
	}
	return w.get(p.base()+path, header)
}

// get makes a request with a header, and reads the whole answer.
func (w *world) get(url string, header http.Header) answer {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	testkit.Check(w, err)
	req.Header = header
	begin := time.Now()
	resp, err := callers.Do(req)
	if err != nil {
		w.Errorf("a caller gets no answer: %v", err)
		return answer{header: http.Header{}, asked: begin}
	}
	defer resp.Body.Close()
	if _, err := drain(resp.Body); err != nil {
		w.Errorf("a caller gets half an answer: %v", err)
	}
	return answer{resp.StatusCode, resp.Header, begin, time.Since(begin)}
}

// tally counts answers.
type tally struct {
	mu                            sync.Mutex
	passed, rejected, failed, odd int
	shortest, longest             time.Duration
	all                           int
	passedOf                      map[string]int
	firstOdd                      int
	moments                       []moment
}

// moment is a request's time and answer.
type moment struct {
	asked  time.Time
	status int
}

func (y *tally) add(user string, a answer) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.all == 0 || a.took < y.shortest {
		y.shortest = a.took
	}
	y.longest = max(y.longest, a.took)
	y.all++
	y.moments = append(y.moments, moment{a.asked, a.status})
	switch a.status {
	case http.StatusOK:
		y.passed++
		if y.passedOf == nil {
			y.passedOf = map[string]int{}
		}
		y.passedOf[user]++
	case http.StatusTooManyRequests:
		y.rejected++
	case http.StatusInternalServerError:
		y.failed++
	default:
		y.odd++
		y.firstOdd = a.status
	}
}

// send makes a request for each of users, four at a time.
func (w *world) send(p *proxy, users ...string) *tally {
	w.Helper()
	y := new(tally)
	next := make(chan string)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for user := range next {
				y.add(user, w.ask(p, "/", user))
			}
		})
	}
	for _, user := range users {
		next <- user
	}
	close(next)
	wg.Wait()
	return y
}

// flow makes requests at a constant rate until stop is called, which returns the results. On a busy machine, it catches up on the last
// tenth of a second, and skips earlier requests.
func (w *world) flow(p *proxy, rate int, users ...string) (stop func() *tally) {
	y, end := new(tally), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		begin, done, next := time.Now(), 0, 0
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			due := int(time.Since(begin) * time.Duration(rate) / time.Second)
			for done = max(done, due-max(1, rate/10)); done < due; done++ {
				user := users[next%len(users)]
				next++
				wg.Go(func() { y.add(user, w.ask(p, "/", user)) })
			}
		}
	})
	stop = sync.OnceValue(func() *tally { close(end); wg.Wait(); return y })
	w.Cleanup(func() { stop() })
	return stop
}
