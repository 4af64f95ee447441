package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// ladderCalls is the number of calls in tests with a limit of 1,000.
const ladderCalls = 5_000

// shipped is the released build of the server, for tests whose load is too high for the race detector.
var shipped = testkit.Build{Packages: []string{"."}}

// daemon is a ratelimitd process. It ends with the test.
type daemon struct {
	*testkit.Daemon

	t      *testing.T
	stop   func() // sends SIGTERM and waits
	killed bool
}

// kill kills d immediately, like a crash.
func (d *daemon) kill() {
	d.killed = true
	d.Kill()
}

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.Signal(s); err != nil {
		d.t.Error(err)
	}
}

// startDaemon starts a server with counters in db and the given rules, and waits until it serves.
func startDaemon(t *testing.T, db *redistest.Server, rules string, env ...string) *daemon {
	t.Helper()
	return startProcess(t, rules, append([]string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + db.Addr()}, env...)...)
}

// startProcess starts a server with the given rules and the backend in env, and waits until it serves.
func startProcess(t *testing.T, rules string, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(rules))
	return startCommand(t, exec.Command(shipped.Path(t, "ratelimitd")), dir, env...) //nolint:noctx // it ends by a signal
}

// startCommand starts a server by a command, with rules in a directory.
func startCommand(t *testing.T, cmd *exec.Cmd, dir string, env ...string) *daemon {
	t.Helper()
	cmd.Env = append(append(os.Environ(), testkit.Env(dir)...), env...)
	server, err := testkit.StartDaemon(cmd)
	testkit.Check(t, err)
	d := &daemon{t: t, Daemon: server}
	d.stop = sync.OnceFunc(func() {
		if d.killed {
			return // it must not end successfully
		}
		if err := d.Terminate(); err != nil {
			t.Errorf("the server ended with %v:\n%s", err, d.Log.String())
		}
	})
	t.Cleanup(d.stop)
	return d
}

// dial connects to d until the test ends.
func (d *daemon) dial() *grpc.ClientConn {
	d.t.Helper()
	return d.dialTo(d.At["GRPC"])
}

// operate connects to the admin socket of d until the test ends.
func (d *daemon) operate() *grpc.ClientConn {
	d.t.Helper()
	return d.dialTo("unix:" + d.At["SOCKET"])
}

func (d *daemon) dialTo(target string) *grpc.ClientConn {
	d.t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Check(d.t, err)
	d.t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			d.t.Error(err)
		}
	})
	return conn
}

// client connects to d.
func (d *daemon) client() rlsv3.RateLimitServiceClient { //nolint:ireturn // the generated interface
	d.t.Helper()
	return rlsv3.NewRateLimitServiceClient(d.dial())
}

// ready waits until d is ready, and returns the time that this took.
func (d *daemon) ready() time.Duration {
	d.t.Helper()
	return testkit.Eventually(d.t, "the server is ready", func() bool {
		_, status := d.get("HTTP", "/readyz")
		return status == http.StatusOK
	}, d.Log.String)
}

// get requests a page.
func (d *daemon) get(listener, path string) (body string, status int) {
	d.t.Helper()
	for begun := time.Now(); ; {
		status, body, err := testkit.Fetch(d.t.Context(), http.MethodGet, "http://"+d.At[listener]+path, "")
		if err == nil {
			return body, status
		}
		if time.Since(begun) > 5*time.Second { // on a busy machine, the request may be too slow for the server
			d.t.Fatal(err)
		}
	}
}

// metric returns the value of a series with labels in /metrics; 0 if it is missing.
func (d *daemon) metric(series string) float64 {
	d.t.Helper()
	return proc.Series(metrics(d))[series]
}

// shed returns the number of shed requests.
func (d *daemon) shed() (sum float64) {
	d.t.Helper()
	for series, n := range proc.Series(metrics(d)) {
		if strings.HasPrefix(series, "ratelimitd_shed_total{") {
			sum += n
		}
	}
	return sum
}

// request returns a request for a descriptor of one entry in the domain shop.
func request(key, value string) *rlsv3.RateLimitRequest {
	return &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: descriptorsOf(fmt.Sprintf("%s=%s", key, value))}
}

// decide makes a request, which must be answered.
func decide(t *testing.T, client rlsv3.RateLimitServiceClient, r *rlsv3.RateLimitRequest) *rlsv3.RateLimitResponse {
	t.Helper()
	answer, err := client.ShouldRateLimit(t.Context(), r)
	testkit.Check(t, err)
	return answer
}

// asked makes a request, and returns the code of the answer, or of the error.
func asked(t *testing.T, client rlsv3.RateLimitServiceClient) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := client.ShouldRateLimit(ctx, request("user", "ann"))
	if err != nil {
		return grpcstatus.Code(err).String()
	}
	return answer.GetOverallCode().String()
}

// fallbacks returns the series that count fallbacks.
func fallbacks(d *daemon) string {
	return strings.Join(regexp.MustCompile(`(?m)^ratelimitd_backend_fallback_total.*$`).FindAllString(metrics(d), -1), "\n")
}
