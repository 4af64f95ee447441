package examples_test

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// advised matches a variable with a value in a text.
var advised = regexp.MustCompile("`([A-Z][A-Z_]+)(?:=|: )\"?([^`\"]+)\"?`")

// guides are the pages about examples, besides their READMEs.
var guides = map[string]string{
	"ai-gateway": "ai-gateway.md", "envoy": "envoy.md", "envoy-gateway": "envoy-gateway.md", "envoy-llm": "llm-budgets.md", "istio": "istio.md",
	"kubernetes": "kubernetes.md",
}

// advice returns what the README of an example and its guide say.
func advice(t *testing.T, example string) string {
	t.Helper()
	text := read(t, example+"/README.md")
	if guide, ok := guides[example]; ok {
		text += read(t, "../docs/"+guide)
	}
	return text
}

// TestAdvice starts the server of each example with its own files and, one after the other, each variable that the
// example's README or guide names with a value, and waits until it is healthy.
func TestAdvice(t *testing.T) {
	t.Parallel()
	for example, with := range map[string]func(t *testing.T, more map[string]string){
		"ai-gateway": func(t *testing.T, more map[string]string) {
			t.Helper()
			env := map[string]string{"CONFIG_GRPC_XDS_SERVER_URL": aiGateway(t, "envoy-ai-gateway-ratelimit")}
			maps.Copy(env, more)
			readManifests(t, "ai-gateway/ratelimitd.yaml").start(t, env)
		},
		"compose":       func(t *testing.T, more map[string]string) { t.Helper(); startCompose(t, "compose", more) },
		"envoy":         func(t *testing.T, more map[string]string) { t.Helper(); startCompose(t, "envoy", more) },
		"envoy-llm":     func(t *testing.T, more map[string]string) { t.Helper(); startCompose(t, "envoy-llm", more) },
		"envoy-tls":     func(t *testing.T, more map[string]string) { t.Helper(); startTLS(t, more) },
		"envoy-gateway": startGateway,
		"istio": func(t *testing.T, more map[string]string) {
			t.Helper()
			readManifests(t, "istio/ratelimitd.yaml").start(t, more)
		},
		"kubernetes": func(t *testing.T, more map[string]string) {
			t.Helper()
			readManifests(t, "kubernetes/ratelimitd.yaml").start(t, more)
		},
	} {
		for _, variable := range advised.FindAllStringSubmatch(advice(t, example), -1) {
			t.Run(example+" "+variable[0], func(t *testing.T) {
				t.Parallel()
				with(t, map[string]string{variable[1]: variable[2]})
			})
		}
	}
	for example, variable := range map[string]string{
		"ai-gateway": "QUOTA_GROUP_BY", "istio": "REDIS_KEY_FORMAT", "envoy-gateway": "XDS_KEEP_ON_EMPTY", "envoy": "DECISION_METADATA",
		"envoy-tls": "GRPC_SERVER_TLS_MIN_VERSION",
	} {
		if !strings.Contains(strings.Join(advised.FindAllString(advice(t, example), -1), " "), variable) {
			t.Errorf("the README and the guide of %s advise no value for %s, which this test looks for", example, variable)
		}
	}
}

// startGateway runs the server with the variables of envoy-gateway.yaml, over the rules that Envoy Gateway makes of
// policy.yaml, with overlay.yaml mounted, and with the certificates that Envoy Gateway mounts at /certs.
func startGateway(t *testing.T, more map[string]string) {
	t.Helper()
	startGatewayOf(t, "envoy-gateway.yaml", more)
}

// startGatewayOf is startGateway with the variables of another file.
func startGatewayOf(t *testing.T, file string, more map[string]string) *server {
	t.Helper()
	root := t.TempDir()
	mountConfigMap(t, filepath.Join(root, "config"), files{"shop.yaml": read(t, "envoy-gateway/sent/shop.yaml")})
	mountConfigMap(t, filepath.Join(root, "etc/ratelimitd/overlay"), overlayOfGateway(t))
	ca := certstest.NewCA(t, "envoy-gateway")
	cert := ca.Issue(t, x509.Certificate{DNSNames: []string{"envoy-ratelimit"}})
	mountConfigMap(t, filepath.Join(root, "certs"), files{"ca.crt": string(ca.PEM), "tls.crt": string(cert.Cert), "tls.key": string(cert.Key)})
	env := map[string]string{
		"REDIS_SOCKET_TYPE": "tcp", "REDIS_URL": redistest.Start(t).Addr(), "USE_STATSD": "false",
		"RUNTIME_ROOT": root, "RUNTIME_WATCH_ROOT": "false", "RUNTIME_IGNOREDOTFILES": "true",
		"GRPC_SERVER_USE_TLS": "true", "GRPC_SERVER_TLS_CERT": "/certs/tls.crt", "GRPC_SERVER_TLS_KEY": "/certs/tls.key",
	}
	for _, v := range gatewayVariables(t, file) {
		env[v.Name] = v.Value
	}
	maps.Copy(env, more)
	for name, value := range env {
		if strings.HasPrefix(value, "/certs/") || strings.HasPrefix(value, "/etc/") {
			env[name] = filepath.Join(root, value)
		}
	}
	return startSecured(t, "ratelimit", env, clientOf(t, ca, "envoy-ratelimit"))
}

// gatewayVariables returns the variables that a configuration of Envoy Gateway adds to the Deployment.
func gatewayVariables(t *testing.T, file string) []envoytest.Variable {
	t.Helper()
	env, err := envoytest.GatewayVariables(read(t, "envoy-gateway/"+file))
	if err != nil || len(env) == 0 {
		t.Fatalf("%s sets the variables %v: %v", file, env, err)
	}
	return env
}

// TestIstioReference: with REDIS_KEY_FORMAT=reference, the counters of the Istio example are those of envoyproxy/ratelimit.
func TestIstioReference(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	s := readManifests(t, "istio/ratelimitd.yaml").start(t, map[string]string{"REDIS_URL": db.Addr(), "REDIS_KEY_FORMAT": "reference"})
	s.expect(t, "ratelimit", "PATH", "/productpage", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 1, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
	if keys := db.CLI("KEYS", "*"); !regexp.MustCompile(`^ratelimit_PATH_/productpage_\d+$`).MatchString(keys) {
		t.Errorf("the counter is %q", keys)
	}
}

// TestIstioRules: what the guide says to write into the rules does what it says.
func TestIstioRules(t *testing.T) {
	t.Parallel()
	guide := read(t, "../docs/istio.md")
	for _, tt := range []struct{ advice, line, becomes, path string }{
		{"`value: /productpage*` with `share_threshold: true`", "value: /productpage\n", "value: /productpage*\n    share_threshold: true\n", "/productpage?q=1"},
		{"`algorithm: sliding_window`", "requests_per_unit: 1\n", "requests_per_unit: 1\n      algorithm: sliding_window\n", "/productpage"},
	} {
		if !strings.Contains(guide, tt.advice) {
			t.Errorf("the guide does not say %s", tt.advice)
		}
		m := readManifests(t, "istio/ratelimitd.yaml")
		before := m.rules["config.yaml"]
		m.rules["config.yaml"] = strings.Replace(before, tt.line, tt.becomes, 1)
		if m.rules["config.yaml"] == before {
			t.Errorf("the rules have no %q", tt.line)
		}
		load(t, descriptors.Options{Strict: true}, descriptors.Source{Name: "config.yaml", Data: []byte(m.rules["config.yaml"])})
		m.start(t, nil).expect(t, "ratelimit", "PATH", tt.path,
			&rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 1, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
	}
}

// TestComposeREADME does what the README of the Compose example says: it asks both servers, which count together, takes
// Redis away, upon which each counts for itself, and changes a file, which both then serve.
func TestComposeREADME(t *testing.T) {
	t.Parallel()
	env, root := composeEnv(t, "compose")
	db := redistest.Start(t)
	env["REDIS_URL"] = db.Addr()
	servers := []*server{start(t, "ratelimitd", env), start(t, "ratelimitd", env)}
	calls := regexp.MustCompile(`(?m)^    curl -s http://127.0.0.1:808(\d)/json -d '(.*)'$`).FindAllStringSubmatch(read(t, "compose/README.md"), -1)
	if len(calls) != len(servers) || calls[0][1] != "0" || calls[1][1] != "1" {
		t.Fatalf("the README makes the calls %q, want one for each server", calls)
	}
	ask := func() (left, limit int) {
		for i, s := range servers {
			left, limit = s.json(t, calls[i][2])
		}
		return left, limit
	}
	const rounds = 8
	left := 0
	for range rounds {
		left, _ = ask()
	}
	if left >= 40-rounds {
		t.Errorf("after %d calls of each server %d of 40 are left: they do not count together", rounds, left)
	}
	db.Kill()
	if left, _ = ask(); left != 39 {
		t.Errorf("without Redis %d of 40 are left after one call of a server, want 39", left)
	}
	rules := filepath.Join(root, "etc/ratelimitd/rules/edge.yaml")
	text := strings.Replace(read(t, rules), "requests_per_unit: 20", "requests_per_unit: 30", 1)
	testkit.Check(t, os.WriteFile(rules, []byte(text), 0o600))
	for i, s := range servers {
		testkit.Eventually(t, fmt.Sprintf("server %d serves the changed file", i), func() bool {
			_, limit := s.json(t, calls[i][2])
			return limit == 30
		})
	}
}

// json posts a request to /json, and returns what is left and the limit.
func (s *server) json(t *testing.T, body string) (left, limit int) {
	t.Helper()
	status, text, err := testkit.Fetch(t.Context(), http.MethodPost, "http://"+s.At["HTTP"]+"/json", body)
	testkit.Check(t, err)
	var answer struct {
		Statuses []struct {
			LimitRemaining int
			CurrentLimit   struct{ RequestsPerUnit int }
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Statuses) != 1 {
		t.Fatalf("/json: %d, %v, %+v", status, err, answer)
	}
	return answer.Statuses[0].LimitRemaining, answer.Statuses[0].CurrentLimit.RequestsPerUnit
}
