package client_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/client"
)

var (
	programs = testkit.Build{Packages: []string{"../../cmd/ratelimitd"}}
	addr     string // of a server with DECISION_METADATA=true that all tests and examples share
)

// decisionMetadata has servers say which rule decided.
const decisionMetadata = "DECISION_METADATA=true"

// TestMain starts that server, and finds goroutines that clients leave behind. With -short there are no examples, as they
// cannot skip themselves.
func TestMain(m *testing.M) {
	flag.Parse()
	var shared *testkit.Daemon
	if testing.Short() {
		_ = flag.Set("test.run", "^Test")
	} else {
		var err error
		if shared, err = run(decisionMetadata); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		addr = shared.At["GRPC"]
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.Cleanup(func(code int) {
		if shared != nil {
			shared.Kill()
		}
		_ = programs.Remove()
		os.Exit(code)
	}))
}

// run starts a server with the rules of testdata, and further settings.
func run(env ...string) (*testkit.Daemon, error) {
	dir, err := programs.Make()
	if err != nil {
		return nil, err
	}
	rules, err := filepath.Abs(filepath.Join("testdata", "rules"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(dir, "ratelimitd"))
	cmd.Env = append(testkit.Env(rules), env...)
	return testkit.StartDaemon(cmd)
}

// start starts a server of this test's own.
func start(t *testing.T, env ...string) *testkit.Daemon {
	t.Helper()
	testkit.NotShort(t)
	d, err := run(env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	return d
}

// connect returns a client of the servers at, which has more patience than by default, as a busy machine is slow.
func connect(t *testing.T, at string, c client.Config) *client.Client {
	t.Helper()
	if c.Timeout == 0 {
		c.Timeout = testkit.Patience
	}
	got, err := client.New(at, "shop", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := got.Close(); err != nil {
			t.Error(err)
		}
	})
	return got
}

// shared returns a client of the server that all tests share.
func shared(t *testing.T) *client.Client {
	t.Helper()
	testkit.NotShort(t)
	return connect(t, addr, client.Config{})
}

// fresh returns a client of a server of this test's own, for tests that would find what they have counted in the run before.
func fresh(t *testing.T) *client.Client {
	t.Helper()
	return connect(t, start(t, decisionMetadata).At["GRPC"], client.Config{})
}

// decided fails the test unless a question was answered, by want.
func decided(t *testing.T, what string, r client.Result, err error, want bool) {
	t.Helper()
	if err != nil || r.OK != want {
		t.Fatalf("%s: %+v, %v; want OK %v", what, r, err, want)
	}
}
