package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

var without = flag.String("without", "", "play the scripts of TestVariables as if they did not set this variable; that must fail where they show it")

// TestVariables shows what each variable of the settings does, with a value other than its default, as seen from
// outside a server.
func TestVariables(t *testing.T) {
	t.Parallel()
	dir := "testdata/variables"
	if *without != "" {
		dir = stripped(t, dir, *without)
	}
	testscript.Run(t, scripts(t, dir))
}

// stripped are scripts that do not set a variable.
func stripped(t *testing.T, from, name string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	set := regexp.MustCompile(`(?m)^env ` + name + `=.*\n`)
	for _, path := range scriptsIn(t, from) {
		text, err := os.ReadFile(path)
		testkit.Check(t, err)
		if set.Match(text) {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(path)), set.ReplaceAll(text, nil), 0o600)
		}
		testkit.Check(t, err)
	}
	return dir
}

func scriptsIn(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scripts in %s: %v", dir, err)
	}
	return paths
}

// shownBy has the tests that show what scripts cannot, with the variables that each of them shows.
func shownBy() map[string][]string {
	return map[string][]string{
		"TestTLSFloor":      {"GRPC_SERVER_TLS_MIN_VERSION"},
		"TestDebugTLS":      {"DEBUG_TLS"},
		"TestAdminToken":    {"ADMIN_TOKEN_FILE", "ADMIN_TOKENS_IN_CLEAR"},
		"TestStatsd":        {"STATSD_PROTOCOL"},
		"TestFlushInterval": {"STATS_FLUSH_INTERVAL"},
		"TestDogStatsD":     {"USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "DD_ENTITY_ID", "DD_ENV", "DD_SERVICE", "DD_VERSION"},
		"TestMemcachedConfig": {
			"MEMCACHE_MAX_IDLE_CONNS", // TestIdleConnections of pkg/backend/memcached shows its effect
		},
		"TestXDSAsEnvoyGatewayRunsIt": {
			"CONFIG_TYPE", "CONFIG_GRPC_XDS_NODE_ID", "CONFIG_GRPC_XDS_SERVER_USE_TLS", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
			"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
		},
		"TestXDSVariables": {
			"CONFIG_GRPC_XDS_NODE_METADATA", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
			"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "XDS_KEEP_ON_EMPTY",
		},
	}
}

// Every variable of the table is set to a value other than its default by a script of TestVariables, or by a test named
// above.
func TestEveryVariableIsShown(t *testing.T) {
	t.Parallel()
	tests := goTests(t)
	shown := map[string][]string{} // values by variable
	for test, names := range shownBy() {
		for _, name := range names {
			shown[name] = append(shown[name], "in "+test)
			if !regexp.MustCompile(`"` + name + `=`).MatchString(tests[test]) {
				t.Errorf("%s is said to show %s, and its file does not set it", test, name)
			}
		}
	}
	quiet := "" // the script that shows that something changes nothing
	for _, path := range scriptsIn(t, "testdata/variables") {
		text, err := os.ReadFile(path)
		testkit.Check(t, err)
		if filepath.Base(path) == "no_effect.txtar" {
			quiet = string(text)
		}
		for _, m := range regexp.MustCompile(`(?m)^env ([A-Z_]+)=(.+)$`).FindAllStringSubmatch(string(text), -1) {
			shown[m[1]] = append(shown[m[1]], m[2])
		}
	}
	for _, v := range settings.Table() {
		values := slices.DeleteFunc(slices.Clone(shown[v.Name]), func(value string) bool { return value == v.Default })
		if len(values) == 0 {
			t.Errorf("no script of testdata/variables sets %s to anything but its default %q, and shownBy has no test that does", v.Name, v.Default)
		}
		if noted := strings.Contains(quiet, "\nlogged 'a setting is ignored or adjusted.*"+v.Name+"="); noted != v.NoEffect {
			t.Errorf("%s: no_effect.txtar waits for a notice of it: %v; the table says that there is one: %v", v.Name, noted, v.NoEffect)
		}
	}
}

// goTests are the tests of this package and of the server, each with the text of its file.
func goTests(t *testing.T) map[string]string {
	t.Helper()
	commands, err := filepath.Glob("*_test.go")
	testkit.Check(t, err)
	servers, err := filepath.Glob("../../internal/process/server/*_test.go")
	testkit.Check(t, err)
	tests := map[string]string{}
	for _, file := range append(commands, servers...) {
		text, err := os.ReadFile(file)
		testkit.Check(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{$`).FindAllStringSubmatch(string(text), -1) {
			tests[m[1]] = string(text)
		}
	}
	return tests
}

// reflectCommand prints the services that a server lists.
func reflectCommand(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn := dialed(ts, args[0])
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	ts.Check(err)
	ts.Check(stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}))
	answer, err := stream.Recv()
	ts.Check(err)
	for _, s := range answer.GetListServicesResponse().GetService() {
		_, err := fmt.Fprintln(ts.Stdout(), s.GetName())
		ts.Check(err)
	}
}

// watch waits until the server ends a call that has no end of its own.
func watch(ts *testscript.TestScript, _ bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := healthv1.NewHealthClient(dialed(ts, args[0]))
	for begun := false; !begun; { // a connection may be too old before the call has begun
		stream, err := client.Watch(ctx, &healthv1.HealthCheckRequest{})
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				begun = true
			}
		}
		if ctx.Err() != nil {
			ts.Fatalf("the call has begun: %v; it goes on, or ended with %v", begun, err)
		}
	}
}

func dialed(ts *testscript.TestScript, addr string) *grpc.ClientConn {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	ts.Check(err)
	ts.Defer(func() { ts.Check(conn.Close()) })
	return conn
}

// certificates makes a CA, and a certificate of it for a server and its clients; their files are then in $CA, $CERT and $KEY.
func certificates(t *testing.T, ts *testscript.TestScript, args []string) {
	t.Helper()
	c := redistest.NewCertificates(t, args[0])
	ts.Setenv("CA", c.CA)
	ts.Setenv("CERT", c.Cert)
	ts.Setenv("KEY", c.Key)
}

// seen is what a control plane was told by those who asked it.
type seen struct {
	mu       sync.Mutex
	metadata map[string]string
	headers  metadata.MD
}

func (s *seen) open(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headers, _ = metadata.FromIncomingContext(ctx)
}

func (s *seen) request(r *discoveryv3.DiscoveryRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.GetNode() == nil {
		return
	}
	s.metadata = map[string]string{}
	for name, value := range r.GetNode().GetMetadata().GetFields() {
		s.metadata[name] = value.GetStringValue()
	}
}

// TestXDSVariables: what the control plane is told, and how its answers are used.
func TestXDSVariables(t *testing.T) {
	t.Parallel()
	g := newGateway(t)
	d := startProcess(t, "", g.env("CONFIG_GRPC_XDS_NODE_METADATA=key1:val1,zone=eu", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS=x-team:edge", "XDS_KEEP_ON_EMPTY=true")...)
	g.send(policy("shop", "user", 2))
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=2")
	g.send()
	d.waits("DEBUG", "/metrics", `ratelimitd_xds_events_total{event="empty"} 1`)
	d.waits("DEBUG", "/rlconfig", "requests_per_unit=2")
	g.seen.mu.Lock()
	if got := g.seen.metadata; !maps.Equal(got, map[string]string{"zone": "eu"}) {
		t.Errorf("the metadata of the node are %v", got)
	}
	if got := g.seen.headers.Get("x-team"); !slices.Equal(got, []string{"edge"}) {
		t.Errorf("the headers are %v", g.seen.headers)
	}
	g.seen.mu.Unlock()
	d.stop()

	g.send(policy("shop", "user", 2))
	d = startProcess(t, "", g.env("CONFIG_GRPC_XDS_SERVER_TLS_SAN=control.plane")...)
	d.waits("HTTP", "/readyz", "control.plane")
	d.stop()
	d = startProcess(t, "", g.env("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES=10")...)
	d.waits("HTTP", "/readyz", "larger than max")
}
