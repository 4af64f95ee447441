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
	addr     string // of a server with DECISION_METADATA=true, shared by all tests and examples
)

// decisionMetadata makes servers report the deciding rule.
const decisionMetadata = "DECISION_METADATA=true"

// TestMain starts that server and checks for leaked goroutines. With -short, examples do not run, because they cannot skip themselves.
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

// run starts a server with the rules of testdata and additional settings.
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

// start starts a server for one test.
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

// connect returns a client of the servers at an address. Its timeout is longer than the default, for busy machines.
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

// shared returns a client of the shared server.
func shared(t *testing.T) *client.Client {
	t.Helper()
	testkit.NotShort(t)
	return connect(t, addr, client.Config{})
}

// fresh returns a client of a new server, for tests whose counters would remain from the previous run.
func fresh(t *testing.T) *client.Client {
	t.Helper()
	return connect(t, start(t, decisionMetadata).At["GRPC"], client.Config{})
}

// decided fails the test unless the request was decided as wanted.
func decided(t *testing.T, what string, r client.Result, err error, want bool) {
	t.Helper()
	if err != nil || r.OK != want {
		t.Fatalf("%s: %+v, %v; want OK %v", what, r, err, want)
	}
}
