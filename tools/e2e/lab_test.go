package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

var (
	lab      = flag.String("gateway", "", "an Envoy Gateway to play with, in namespaces of its own: see tools/with-namespaces")
	rerecord = flag.Bool("record", false, "write the recordings anew, instead of comparing them")
	many     = flag.Int("streams", 1000, "how many streams to send through Envoy Gateway")
)

// certs is the directory of the rate-limit service's certificates in Envoy Gateway's configuration of Envoy.
const certs = "/certs"

// controller is an Envoy Gateway without Kubernetes, its Envoy, and a rate-limit service with a cluster's names and ports.
type controller struct {
	*gateway

	w       *world
	dir     string
	process *testkit.Server
	redis   *redistest.Server
}

// TestEnvoyGateway runs the policies with Envoy Gateway, one after the other, because its ports are those of a cluster.
func TestEnvoyGateway(t *testing.T) {
	testkit.NotShort(t)
	if *lab == "" {
		t.Skip("make gateways runs it")
	}
	examples := func(w *world) string {
		return w.example("policy.yaml") + "---\n" + w.example("llm.yaml") + "---\n" + w.testdata("routes.yaml")
	}
	cases := []example{
		{name: "rules", play: func(w *world) {
			g := w.control(w.testdata("kinds.yaml"), w.clusterService("envoy-gateway.yaml"))
			g.recording("kinds")
			selectors(w, g.gateway)
		}},
		{name: "the examples", play: func(w *world) {
			g := w.control(examples(w), w.clusterService("with-overlay.yaml", "RULES_OVERLAY="+w.exampleOverlay()))
			g.recording("examples")
			g.page()
		}},
		{name: "tokens", play: func(w *world) {
			tokens(w, w.control(examples(w), w.clusterService("with-overlay.yaml", w.budgetOf("requests_per_unit: 1000, late_charge: true"))).gateway)
		}},
		{name: "reservations", play: func(w *world) {
			g := w.control(examples(w), w.clusterService("with-overlay.yaml", w.budgetOf("requests_per_unit: 1000, reserve: {by: rule-0-match-1, estimate: 400}")))
			together(w, g.gateway, burst{4, 2, 400, 300})
		}},
		{name: "streams", play: func(w *world) { settled(w, examples(w)) }},
		{name: "the control plane restarts", play: func(w *world) {
			g := w.control(w.testdata("kinds.yaml"), w.clusterService("envoy-gateway.yaml"))
			g.restart(strings.Replace(w.testdata("kinds.yaml"), "requests: 3,", "requests: 5,", 1))
		}},
	}
	for _, x := range cases {
		t.Run(x.name, func(t *testing.T) {
			r := new(result)
			play(t, x, *server, r)
			fmt.Printf("%s: %s\n", x.name, strings.Join(r.said, "; "))
		})
	}
}

func (w *world) read(parts ...string) string {
	w.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	testkit.Check(w, err)
	return string(text)
}

func (w *world) testdata(name string) string { return w.read("testdata", "envoy-gateway", name) }
func (w *world) example(name string) string {
	return w.read("..", "..", "examples", "envoy-gateway", name)
}

// exampleOverlay writes the examples' overlay like a mounted ConfigMap, and returns the directory.
func (w *world) exampleOverlay() string {
	w.Helper()
	data, err := envoytest.Data(w.example("overlay.yaml"))
	testkit.Check(w, err)
	dir := w.TempDir()
	for name, text := range data {
		w.write(filepath.Join(dir, name), text)
	}
	return dir
}

// clusterService returns the variables of the rate-limit service in Envoy Gateway's Deployment: its own, those of an example file, and
// more.
func (w *world) clusterService(file string, more ...string) []string {
	w.Helper()
	its, err := envoytest.GatewayVariables(w.example(file))
	testkit.Check(w, err)
	env := []string{
		"RUNTIME_ROOT=/data", "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_IGNOREDOTFILES=true", "RUNTIME_WATCH_ROOT=false", "LOG_LEVEL=info",
		"USE_STATSD=false", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001", "CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit",
		"GRPC_SERVER_TLS_CERT=" + certs + "/tls.crt", "GRPC_SERVER_TLS_KEY=" + certs + "/tls.key", "GRPC_SERVER_TLS_CA_CERT=" + certs + "/ca.crt",
		"CONFIG_GRPC_XDS_SERVER_USE_TLS=true", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT=" + certs + "/tls.crt", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY=" + certs + "/tls.key",
		"CONFIG_GRPC_XDS_SERVER_TLS_CACERT=" + certs + "/ca.crt", "FORCE_START_WITHOUT_INITIAL_CONFIG=true", "REDIS_SOCKET_TYPE=tcp",
		"GRPC_CLIENT_TLS_CACERT=" + certs + "/ca.crt", "DRAIN_DELAY=0s", "ADMIN=true",
		"REDIS_TIMEOUT=10s", "REDIS_OP_TIMEOUT=10s", // for a busy machine
	}
	for _, v := range its {
		env = append(env, v.Name+"="+v.Value)
	}
	return append(append(env, withTLS...), more...)
}

// control starts Envoy Gateway with policies and the rate-limit service with variables, and waits until requests are limited.
func (w *world) control(policies string, env []string) *controller {
	w.Helper()
	db, redis := w.redis()
	up := newModel(w)
	c := &controller{w: w, dir: w.TempDir(), redis: db, gateway: &gateway{url: "http://127.0.0.1:8888", up: up}}
	c.prepare()
	pair, err := tls.LoadX509KeyPair(certs+"/tls.crt", certs+"/tls.key")
	testkit.Check(w, err)
	w.identity = []tls.Certificate{pair}
	c.serve = w.start(append(env, redis))
	c.calls = &ledger{to: rlsv3.NewRateLimitServiceClient(c.serve.conn)}
	// Listen before Envoy Gateway starts: its probe would use this port, and continues without it.
	l := testkit.ListenOn(w, "tcp", "0.0.0.0:8081")
	if strings.Contains(policies, "name: kinds") {
		testkit.NewProxyOn(w, l, c.serve.Addr()) // Envoy and the service share their TLS
	} else {
		w.serveGRPC(l, func(s *grpc.Server) { rlsv3.RegisterRateLimitServiceServer(s, c.calls) }, grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
	}
	c.policies(policies)
	c.run()
	return c
}

// prepare creates the directories, certificates, and files that all policies use.
func (c *controller) prepare() {
	w := c.w
	w.Helper()
	version := release()
	bin := filepath.Join(c.dir, "data", "envoy-versions", version, "bin")
	for _, dir := range []string{bin, filepath.Join(c.dir, "resources")} {
		testkit.Check(w, os.MkdirAll(dir, 0o700))
	}
	testkit.Check(w, os.Symlink(*envoy, filepath.Join(bin, "envoy")))
	w.write(filepath.Join(c.dir, "envoy-gateway.yaml"), strings.ReplaceAll(w.testdata("envoy-gateway.yaml"), "DIR", c.dir))
	_, port, err := net.SplitHostPort(c.up.Listener.Addr().String())
	testkit.Check(w, err)
	c.resource("gateway.yaml", strings.NewReplacer("VERSION", version, "3000", port).Replace(w.testdata("gateway.yaml")))
	if out, err := exec.CommandContext(w.Context(), *lab, "certgen", "--local", "--config-home", filepath.Join(c.dir, "config")).CombinedOutput(); err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	of := func(name string) string { return filepath.Join(c.dir, "config", "certs", name) }
	testkit.Check(w, os.CopyFS(certs, os.DirFS(of("envoy-rate-limit"))))
	w.Cleanup(func() {
		for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
			_ = os.Remove(filepath.Join(certs, name)) // for the next case
		}
	})
	// Without this Secret, Envoy gets a certificate of an unknown CA.
	secret := map[string][]byte{}
	for _, name := range []string{"ca.crt", "tls.crt", "tls.key"} {
		secret[name] = []byte(w.read(of("envoy"), name))
	}
	text, err := json.Marshal(tree{
		"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": secret,
		"metadata": tree{"name": "envoy", "namespace": "envoy-gateway-system"},
	})
	testkit.Check(w, err)
	c.resource("secret.yaml", string(text))
}

// resource writes a file that Envoy Gateway reads and watches.
func (c *controller) resource(name, text string) {
	c.w.Helper()
	c.w.write(filepath.Join(c.dir, name), text)
	testkit.Check(c.w, os.Rename(filepath.Join(c.dir, name), filepath.Join(c.dir, "resources", name)))
}

func (c *controller) policies(text string) { c.resource("policies.yaml", literalCosts(c.w.T, text)) }

// run starts Envoy Gateway, and waits until Envoy has its routes and the service its rules.
func (c *controller) run() {
	w := c.w
	w.Helper()
	c.process = testkit.Start(w, &testkit.Program{
		Name: *lab, Package: "none",
		Args: func(int) []string {
			return []string{"server", "--config-path", filepath.Join(c.dir, "envoy-gateway.yaml")}
		},
		Ready: func(*testkit.Server, string) bool {
			for _, port := range []string{"18001", "8888"} {
				conn, err := net.Dial("tcp", "127.0.0.1:"+port)
				if err != nil {
					return false
				}
				conn.Close()
			}
			return true
		},
	})
	process := c.process
	w.Cleanup(func() { c.end(process) })
	c.awaits("rule-2-match-", "rules")
	testkit.Eventually(w, "Envoy has the routes", func() bool {
		return c.send(w, http.MethodGet, "llm.example.com", "/ready") == http.StatusOK || c.send(w, http.MethodGet, "more.example.com", "/ready") == http.StatusOK
	}, c.process.Output)
}

// end stops Envoy Gateway, which stops its Envoy.
func (c *controller) end(process *testkit.Server) {
	c.w.Helper()
	if process.Over() {
		return
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		c.w.Error(err)
	}
	testkit.Eventually(c.w, "Envoy Gateway ends", process.Over, process.Output)
	testkit.Eventually(c.w, "Envoy ends", func() bool {
		conn, err := net.Dial("tcp", "127.0.0.1:8888")
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
}

// awaits waits until the service has rules with a text.
func (c *controller) awaits(text, what string) time.Duration {
	c.w.Helper()
	return testkit.Eventually(c.w, what, func() bool { return strings.Contains(c.rules(), text) }, c.rules, c.process.Output, c.serve.Output)
}

// rules returns the rules of the service, one a line.
func (c *controller) rules() string {
	_, text, err := testkit.Fetch(context.WithoutCancel(c.w.Context()), http.MethodGet, "http://"+testkit.Addresses("\n" + c.serve.Output())["DEBUG"]+"/rlconfig", "")
	if err != nil {
		return err.Error()
	}
	return text
}

// recording compares Envoy Gateway's output with a recording, or writes it.
func (c *controller) recording(name string) {
	w := c.w
	w.Helper()
	files, err := filepath.Glob(filepath.Join(c.dir, "run", "*", "admin-address.txt"))
	if err != nil || len(files) == 0 {
		w.Fatalf("the addresses of Envoy's administration: %v %v", files, err)
	}
	at := strings.TrimSpace(w.read(files[len(files)-1]))
	_, dump, err := testkit.Fetch(w.Context(), http.MethodGet, "http://"+at+"/config_dump", "")
	testkit.Check(w, err)
	r, err := record([]byte(dump), c.sent())
	testkit.Check(w, err)
	text, err := r.text()
	testkit.Check(w, err)
	if *rerecord {
		w.write(recordingPath(name), text)
		return
	}
	was := w.read(recordingPath(name))
	w.got(was == text, "the recording %s is current: %t", name, was == text)
	if was != text {
		now := filepath.Join(w.TempDir(), "now")
		w.write(now, text)
		out, _ := exec.CommandContext(w.Context(), "diff", "-u", recordingPath(name), now).Output() // fails because they differ
		w.Logf("make gateways RECORD=1 writes it anew:\n%s", out)
	}
}

// sent requests the rules from Envoy Gateway, like the service.
func (c *controller) sent() *discoveryv3.DiscoveryResponse {
	w := c.w
	w.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(w.read(certs, "ca.crt")))
	conn, err := grpc.NewClient("envoy-gateway:18001", grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		Certificates: w.identity, RootCAs: pool, MinVersion: tls.VersionTLS12,
	})))
	testkit.Check(w, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err == nil {
		err = s.Send(&discoveryv3.DiscoveryRequest{Node: &corev3.Node{Id: "envoy-ratelimit"}, TypeUrl: rulesType})
	}
	testkit.Check(w, err)
	answer, err := s.Recv()
	testkit.Check(w, err)
	return answer
}

// page tests docs/envoy-gateway.md: the overlay, then without Redis, then without policies.
func (c *controller) page() {
	w := c.w
	w.Helper()
	w.got(strings.Count(c.rules(), ", overlay: ") == 4, "the overlay changes %d rules", strings.Count(c.rules(), ", overlay: "))
	forty := func(user string) (passed int) {
		for range 40 {
			if c.send(w, http.MethodGet, "shop.example.com", "/", "x-user-id", user) == http.StatusOK {
				passed++
			}
		}
		return passed
	}
	passed := forty("alice")
	w.got(passed >= 20 && passed < 40, "of 40 requests %d pass, with a burst of 20", passed) // 100 more a minute
	c.send(w, http.MethodGet, "llm.example.com", "/", "x-user-id", "alice", "x-tokens", "1300")
	testkit.Eventually(w, "the reservation is settled", func() bool { return c.left(w, "alice") == 1_000_000-1300 }, func() string { return fmt.Sprint(c.left(w, "alice")) })
	w.got(true, "1300 of 1000000 tokens are used")
	c.redis.Kill()
	passed = forty("bob")
	w.got(passed >= 20 && passed < 40, "without Redis %d pass", passed)
	c.policies(w.testdata("routes.yaml"))
	testkit.Eventually(w, "no rules are left", func() bool { return strings.TrimSpace(c.rules()) == "" }, c.rules)
	// For a moment, some requests get 500.
	testkit.Eventually(w, "without a policy all pass", func() bool { return forty("carol") == 40 })
}

// settled sends many streams with all kinds of ends, and checks that sums are exact.
func settled(w *world, policies string) {
	const limit, estimate, users = 1_000_000, 400, 20
	ttl := 30 + *many/50 // longer than the whole case
	c := w.control(policies, w.clusterService("with-overlay.yaml", w.budgetOf(fmt.Sprintf(
		"requests_per_unit: %d, reserve: {by: rule-0-match-1, estimate: %d, ttl: %ds, on_expiry: return}", limit, estimate, ttl))))
	send := func(user string, headers ...string) int {
		return c.send(w, http.MethodGet, "llm.example.com", "/", append([]string{"x-user-id", user}, headers...)...)
	}
	send("spent", "x-tokens", fmt.Sprint(limit))
	testkit.Eventually(w, "a budget is spent", func() bool { return c.left(w, "spent") == 0 })
	all := append(events(), event{"429", []string{"x-tokens", "300"}, http.StatusTooManyRequests, "0"})
	var used, open, rejected, odd [users]atomic.Int64
	next := make(chan int)
	var working sync.WaitGroup
	for range 16 {
		working.Go(func() {
			for i := range next {
				e, of := all[i%len(all)], i%users
				user, headers, tokens := fmt.Sprint("user", of), slices.Clone(e.headers), int64(i%900)
				if at := slices.Index(headers, "x-tokens"); at >= 0 && headers[at+1] != "0" {
					headers[at+1] = fmt.Sprint(tokens)
				} else {
					tokens = 0
				}
				switch {
				case e.status == http.StatusTooManyRequests:
					user = "spent"
					rejected[of].Add(1)
				case strings.Contains(e.calls, " "):
					used[of].Add(tokens)
				default:
					open[of].Add(1)
				}
				if send(user, headers...) != e.status {
					odd[of].Add(1)
				}
			}
		})
	}
	begin := time.Now()
	for i := range *many {
		next <- i
	}
	close(next)
	working.Wait()
	took := time.Since(begin)
	sum := func(of *[users]atomic.Int64) (n int64) {
		for i := range of {
			n += of[i].Load()
		}
		return n
	}
	exact := func(held int64) (n int) {
		for i := range users {
			if int64(c.left(w, fmt.Sprint("user", i))) == limit-used[i].Load()-held*open[i].Load() {
				n++
			}
		}
		return n
	}
	w.got(sum(&odd) == 0, "%d streams in %.0f s: %d tokens used, %d without a second call, %d rejected, %d answered otherwise", *many, took.Seconds(),
		sum(&used), sum(&open), sum(&rejected), sum(&odd))
	testkit.Poll(testkit.Patience, func() bool { return exact(estimate) == users })
	w.got(exact(estimate) == users, "%d of %d sums are exact, with an estimate for each stream without a second call", exact(estimate), users)
	m := c.serve.metrics(w)
	of := func(result string) float64 {
		return m[`ratelimitd_reservations_total{domain="default/eg/http",outcome="`+result+`"}`]
	}
	fine := of("reserved") == float64(int64(*many)-sum(&rejected)+1) && of("reserved")-of("settled") == float64(sum(&open)) && of("charged")+of("repeated")+of("late") == 0
	w.got(fine, "%.0f reserved, %.0f settled, %.0f charged, %.0f repeated, %.0f late", of("reserved"), of("settled"), of("charged"), of("repeated"), of("late"))
	testkit.Poll(time.Duration(ttl)*time.Second+testkit.Patience, func() bool { return exact(0) == users })
	w.got(exact(0) == users, "%d of %d sums are exact when the others have expired, %.0f s after the first stream with a ttl of %d s",
		exact(0), users, time.Since(begin).Seconds(), ttl)
}

// restart stops Envoy Gateway, changes its policies, and starts it again.
func (c *controller) restart(policies string) {
	c.w.Helper()
	c.end(c.process)
	before := c.rules()
	c.policies(policies)
	c.w.got(strings.Contains(before, "requests_per_unit=3,"), "while Envoy Gateway is down the rules stay")
	begin := time.Now()
	c.run()
	c.awaits("requests_per_unit=5,", "the new rules have come")
	c.w.got(true, "its new rules come when it is back, here %.1f s after its start", time.Since(begin).Seconds())
}
