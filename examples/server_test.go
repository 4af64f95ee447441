package examples_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/testing/protocmp"
)

// binaries are the programs these tests run, built once.
var binaries struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(binaries.dir) // it is below the directory for temporary files anyway
	os.Exit(code)
}

// program returns the path of ratelimitd, of ratelimit, which is a link to it, or of client.
func program(t *testing.T, name string) string {
	t.Helper()
	b := &binaries
	b.once.Do(func() {
		b.dir, b.err = os.MkdirTemp("", "ratelimitd-examples") //nolint:usetesting // all tests use what the first one builds
		if b.err != nil {
			return
		}
		out, err := exec.Command("go", "build", "-o", b.dir, "../cmd/ratelimitd", "./client").CombinedOutput()
		if err != nil {
			b.err = fmt.Errorf("go build: %w\n%s", err, out)
			return
		}
		b.err = os.Symlink("ratelimitd", filepath.Join(b.dir, "ratelimit"))
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, name)
}

// server is a running ratelimitd.
type server struct {
	target string // for grpc.NewClient
	http   string // host and port
	log    *output
	client rlsv3.RateLimitServiceClient
}

// start runs the server under the given name with env, on loopback, until the test ends, and waits until it is healthy.
func start(t *testing.T, name string, env map[string]string) *server {
	t.Helper()
	return startSecured(t, name, env, insecure.NewCredentials())
}

// startSecured is like start, for a server whose gRPC listener takes these credentials.
func startSecured(t *testing.T, name string, env map[string]string, creds credentials.TransportCredentials) *server {
	t.Helper()
	output := &output{told: make(chan string, 1)}
	s := &server{target: "unix:" + filepath.Join(t.TempDir(), "grpc.sock"), log: output}
	cmd := exec.Command(program(t, name))
	cmd.Stdout, cmd.Stderr = output, output
	env = maps.Clone(env)
	maps.Copy(env, map[string]string{
		"HOST": "127.0.0.1", "PORT": "0", "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0",
		"GRPC_UDS": strings.TrimPrefix(s.target, "unix:"), "DRAIN_DELAY": "0s",
		"REDIS_TIMEOUT": "10s", "REDIS_OP_TIMEOUT": "10s", // as a busy machine may be slow
	})
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.target, grpc.WithTransportCredentials(creds), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond},
	}))
	if err != nil {
		t.Fatal(err)
	}
	s.client = rlsv3.NewRateLimitServiceClient(conn)
	t.Cleanup(func() {
		err := errors.Join(conn.Close(), cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
		if err != nil || t.Failed() {
			t.Errorf("ratelimitd ended with %v and said:\n%s", err, output.String())
		}
	})
	if err := healthy(t.Context(), conn); err != nil {
		t.Fatalf("waiting for ratelimitd: %v", err) // its output follows
	}
	select {
	case s.http = <-output.told:
	case <-time.After(patience):
		t.Fatal("ratelimitd does not say where it serves HTTP")
	}
	return s
}

// output receives what a server logs, and finds the address of its HTTP listener there.
type output struct {
	mu   sync.Mutex
	said strings.Builder
	told chan string // has room for the address
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.said.Write(p)
	if m := listens.FindStringSubmatch(o.said.String()); m != nil {
		select {
		case o.told <- m[1] + m[2]:
		default: // the address has been sent before
		}
	}
	return n, err
}

// String returns all output so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.said.String()
}

var listens = regexp.MustCompile(`(?m)^HTTP +(\S+) |"http":"([^"]+)"`)

// patience is how long a server may take for something that it should do at once.
const patience = time.Minute

// healthy waits until the server reports that it is serving.
func healthy(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{Service: "ratelimit"}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for {
		answer, err := watch.Recv()
		if err != nil {
			return err
		}
		if answer.GetStatus() == healthpb.HealthCheckResponse_SERVING {
			return nil
		}
	}
}

// expect sends a request with one descriptor, which must pass, and checks the limit that applied.
func (s *server) expect(t *testing.T, domain, key, value string, want *rlsv3.RateLimitResponse_RateLimit) {
	t.Helper()
	answer, err := s.client.ShouldRateLimit(t.Context(), &rlsv3.RateLimitRequest{
		Domain:      domain,
		Descriptors: []*rlcommonv3.RateLimitDescriptor{{Entries: []*rlcommonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if answer.GetOverallCode() != rlsv3.RateLimitResponse_OK {
		t.Errorf("%s=%s is answered %s", key, value, answer.GetOverallCode())
	}
	if diff := cmp.Diff(want, answer.GetStatuses()[0].GetCurrentLimit(), protocmp.Transform()); diff != "" {
		t.Errorf("limit of %s=%s (-want +got):\n%s", key, value, diff)
	}
}

// get requests a path from the HTTP listener and expects status 200.
func (s *server) get(ctx context.Context, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.http+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", path, resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// TestClient runs the client for a user. The client gives up after two seconds, which it or the server may spend
// waiting for the machine; then another user is tried.
func TestClient(t *testing.T) {
	t.Parallel()
	s := startCompose(t, "envoy", nil)
	var wrong string
	for round := range 5 {
		if wrong = playClient(t, s, fmt.Sprint("alice", round)); !strings.Contains(wrong, "DeadlineExceeded") {
			break
		}
	}
	if wrong != "" {
		t.Error(wrong)
	}
}

// playClient runs the client for a user not seen before, and returns what is wrong with its output.
func playClient(t *testing.T, s *server, user string) (wrong string) {
	t.Helper()
	for _, tt := range []struct{ domain, want string }{
		{"edge", `^OK left: 39 reset: [1-9]s\n$`},
		{"edge", `^OK left: 3[89] reset: [1-9]s\n$`},
		{"nobody", `^OK left: 0 reset: 0s\n$`}, // not limited
	} {
		out, err := exec.Command(program(t, "client"), s.target, tt.domain, "user", user).CombinedOutput()
		if err != nil || !regexp.MustCompile(tt.want).Match(out) {
			return fmt.Sprintf("client prints %q, %v; want %s", out, err, tt.want)
		}
	}
	return ""
}
