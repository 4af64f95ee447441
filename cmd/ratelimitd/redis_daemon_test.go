package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// built is the server as it is shipped, built once: without the race detector, under which it cannot keep up with the
// load of some tests.
type built struct {
	once sync.Once
	dir  string
	err  error
}

// path is that of the program.
func (b *built) path(t *testing.T) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "ratelimitd"); b.err != nil { //nolint:usetesting // all tests use what the first one builds
			return
		}
		out, err := exec.Command("go", "build", "-o", b.dir, ".").CombinedOutput()
		if err != nil {
			b.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "ratelimitd")
}

// shipped is shared by the tests of this package.
var shipped built

// daemon is a ratelimitd of its own process. It ends with the test.
type daemon struct {
	t           *testing.T
	stdout, log buffer
	at          map[string]string // GRPC, HTTP, DEBUG
	stop        func()            // ends it as SIGTERM does, and waits
	process     *os.Process
	killed      bool
}

// kill ends d at once, as a crash does.
func (d *daemon) kill() {
	d.killed = true
	d.signal(syscall.SIGKILL)
	d.stop()
}

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.process.Signal(s); err != nil {
		d.t.Error(err)
	}
}

// startDaemon starts a server over counters in db, with the given rules, and waits until it serves.
func startDaemon(t *testing.T, db *redistest.Server, rules string, env ...string) *daemon {
	t.Helper()
	return startProcess(t, rules, append([]string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + db.Addr()}, env...)...)
}

// startProcess starts a server with the given rules, whose counters are where env says, and waits until it serves.
func startProcess(t *testing.T, rules string, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t}
	cmd := exec.Command(shipped.path(t)) //nolint:noctx // it ends by a signal
	cmd.Env = append(append(os.Environ(),
		"USE_STATSD=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0",
		"RUNTIME_ROOT="+dir, "RUNTIME_APPDIRECTORY=.", "RUNTIME_WATCH_ROOT=false", "DRAIN_DELAY=0s",
	), env...)
	cmd.Stdout, cmd.Stderr = &d.stdout, &d.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.process = cmd.Process
	d.stop = sync.OnceFunc(func() {
		if d.killed {
			_ = cmd.Wait() // it is not to end well
			return
		}
		err := cmd.Process.Signal(syscall.SIGTERM)
		if waitErr := cmd.Wait(); err != nil || waitErr != nil {
			t.Errorf("the server ended with %v, %v:\n%s", err, waitErr, d.log.String())
		}
	})
	t.Cleanup(d.stop)
	if !eventually(func() bool { return strings.Contains(d.stdout.String(), "\ndebug ") }) {
		t.Fatalf("the server does not serve:\n%s%s", d.stdout.String(), d.log.String())
	}
	d.at = addresses(d.stdout.String())
	return d
}

// client connects to d.
func (d *daemon) client() rlsv3.RateLimitServiceClient { //nolint:ireturn // what the generated code has
	d.t.Helper()
	conn, err := grpc.NewClient(d.at["GRPC"], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			d.t.Error(err)
		}
	})
	return rlsv3.NewRateLimitServiceClient(conn)
}

// ready waits until d can decide, and tells how long that took.
func (d *daemon) ready() time.Duration {
	d.t.Helper()
	begin := time.Now()
	if !eventually(func() bool { _, status := d.get("HTTP", "/readyz"); return status == http.StatusOK }) {
		d.t.Fatalf("the server does not become ready:\n%s", d.log.String())
	}
	return time.Since(begin)
}

// get asks for a page.
func (d *daemon) get(listener, path string) (body string, status int) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.at[listener]+path, http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := bufio.NewReader(resp.Body).WriteTo(&b); err != nil {
		d.t.Fatal(err)
	}
	return b.String(), resp.StatusCode
}

// metric is the value of a series, with its labels, in /metrics; 0 where it is not there.
func (d *daemon) metric(series string) float64 {
	d.t.Helper()
	body, _ := d.get("DEBUG", "/metrics")
	for line := range strings.Lines(body) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				d.t.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// request is one for a descriptor of one entry of the domain shop.
func request(key, value string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: descriptorsOf(fmt.Sprintf("%s=%s", key, value))}
}
