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

// ladderCalls is how many calls tests make for a limit of 1,000.
const ladderCalls = 5_000

// shipped is the server as it is shipped, for the tests of this package: without the race detector, under which it cannot
// keep up with the load of some of them.
var shipped = testkit.Build{Packages: []string{"."}}

// daemon is a ratelimitd of its own process. It ends with the test.
type daemon struct {
	*testkit.Daemon

	t      *testing.T
	stop   func() // ends it as SIGTERM does, and waits
	killed bool
}

// kill ends d at once, as a crash does.
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

// startDaemon starts a server over counters in db, with the given rules, and waits until it serves.
func startDaemon(t *testing.T, db *redistest.Server, rules string, env ...string) *daemon {
	t.Helper()
	return startProcess(t, rules, append([]string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + db.Addr()}, env...)...)
}

// startProcess starts a server with the given rules, whose counters are where env says, and waits until it serves.
func startProcess(t *testing.T, rules string, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(rules))
	return startCommand(t, exec.Command(shipped.Path(t, "ratelimitd")), dir, env...) //nolint:noctx // it ends by a signal
}

// startCommand starts a server by a command, whose rules are in a directory.
func startCommand(t *testing.T, cmd *exec.Cmd, dir string, env ...string) *daemon {
	t.Helper()
	cmd.Env = append(append(os.Environ(), testkit.Env(dir)...), env...)
	server, err := testkit.StartDaemon(cmd)
	testkit.Check(t, err)
	d := &daemon{t: t, Daemon: server}
	d.stop = sync.OnceFunc(func() {
		if d.killed {
			return // it is not to end well
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
func (d *daemon) client() rlsv3.RateLimitServiceClient { //nolint:ireturn // what the generated code has
	d.t.Helper()
	return rlsv3.NewRateLimitServiceClient(d.dial())
}

// ready waits until d can decide, and tells how long that took.
func (d *daemon) ready() time.Duration {
	d.t.Helper()
	return testkit.Eventually(d.t, "the server is ready", func() bool {
		_, status := d.get("HTTP", "/readyz")
		return status == http.StatusOK
	}, d.Log.String)
}

// get asks for a page.
func (d *daemon) get(listener, path string) (body string, status int) {
	d.t.Helper()
	for begun := time.Now(); ; {
		status, body, err := testkit.Fetch(d.t.Context(), http.MethodGet, "http://"+d.At[listener]+path, "")
		if err == nil {
			return body, status
		}
		if time.Since(begun) > 5*time.Second { // a test that is busy may take too long to ask, and the server hangs up
			d.t.Fatal(err)
		}
	}
}

// metric is the value of a series, with its labels, in /metrics; 0 where it is not there.
func (d *daemon) metric(series string) float64 {
	d.t.Helper()
	return proc.Series(metrics(d))[series]
}

// shed is how many requests have been shed.
func (d *daemon) shed() (sum float64) {
	d.t.Helper()
	for series, n := range proc.Series(metrics(d)) {
		if strings.HasPrefix(series, "ratelimitd_shed_total{") {
			sum += n
		}
	}
	return sum
}

// request is one for a descriptor of one entry of the domain shop.
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

// fallbacks are the series that count what was decided without Redis.
func fallbacks(d *daemon) string {
	return strings.Join(regexp.MustCompile(`(?m)^ratelimitd_backend_fallback_total.*$`).FindAllString(metrics(d), -1), "\n")
}
