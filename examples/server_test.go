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
	"testing"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// binaries are the programs these tests run: ratelimitd and client.
var binaries = testkit.Build{Packages: []string{"../cmd/ratelimitd", "./client"}}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = binaries.Remove() // it is below the directory for temporary files anyway
	os.Exit(code)
}

// server is a running ratelimitd.
type server struct {
	*testkit.Daemon

	target string // for grpc.NewClient
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
	s := &server{target: "unix:" + filepath.Join(t.TempDir(), "grpc.sock")}
	cmd := exec.Command(binaries.Path(t, "ratelimitd"))
	cmd.Args[0] = name
	env = maps.Clone(env)
	maps.Copy(env, map[string]string{
		"HOST": "127.0.0.1", "PORT": "0", "DEBUG_HOST": "127.0.0.1", "DEBUG_PORT": "0",
		"GRPC_UDS": strings.TrimPrefix(s.target, "unix:"), "DRAIN_DELAY": "0s",
		"REDIS_TIMEOUT": "10s", "REDIS_OP_TIMEOUT": "10s", // as a busy machine may be slow
	})
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var err error
	if s.Daemon, err = testkit.StartDaemon(cmd); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.target, grpc.WithTransportCredentials(creds))
	testkit.Check(t, err)
	s.client = rlsv3.NewRateLimitServiceClient(conn)
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), s.Terminate()); err != nil || t.Failed() {
			t.Errorf("ratelimitd ended with %v and said:\n%s%s", err, s.Stdout.String(), s.Log.String())
		}
	})
	if err := healthy(t.Context(), conn); err != nil {
		t.Fatalf("waiting for ratelimitd: %v", err) // its output follows
	}
	return s
}

// healthy waits until the server reports that it is serving.
func healthy(ctx context.Context, conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
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
	testkit.Check(t, err)
	if answer.GetOverallCode() != rlsv3.RateLimitResponse_OK {
		t.Errorf("%s=%s is answered %s", key, value, answer.GetOverallCode())
	}
	if diff := cmp.Diff(want, answer.GetStatuses()[0].GetCurrentLimit(), protocmp.Transform()); diff != "" {
		t.Errorf("limit of %s=%s (-want +got):\n%s", key, value, diff)
	}
}

// get requests a path from the HTTP listener and expects status 200.
func (s *server) get(ctx context.Context, path string) error {
	status, _, err := testkit.Fetch(ctx, http.MethodGet, "http://"+s.At["HTTP"]+path, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s answers %d", path, status)
	}
	return err
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
		{"edge", `^OK left: 39 reset: [1-9][0-9.]*s\n$`},
		{"edge", `^OK left: 3[89] reset: [1-9][0-9.]*s\n$`},
		{"nobody", `^OK left: 0 reset: 0s\n$`}, // not limited
	} {
		out, err := exec.Command(binaries.Path(t, "client"), s.target, tt.domain, "user", user).CombinedOutput()
		if err != nil || !regexp.MustCompile(tt.want).Match(out) {
			return fmt.Sprintf("client prints %q, %v; want %s", out, err, tt.want)
		}
	}
	return ""
}
