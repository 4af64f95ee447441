package examples_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// composeFile has the fields of a compose file that these examples use.
type composeFile struct {
	Services map[string]struct {
		Build           string
		Image           string
		NetworkMode     string `yaml:"network_mode"`
		Command         []string
		Environment     map[string]string
		Volumes         []string
		Ports           []string
		Deploy          struct{ Replicas int }
		ReadOnly        bool     `yaml:"read_only"`
		CapDrop         []string `yaml:"cap_drop"`
		SecurityOpt     []string `yaml:"security_opt"`
		StopGracePeriod string   `yaml:"stop_grace_period"`
		DependsOn       []string `yaml:"depends_on"`
	}
}

// startCompose starts the server with the environment of the example's compose.yaml and, instead of or in addition to it,
// the given variables, and with a real Redis if it asks for one.
func startCompose(t *testing.T, example string, more map[string]string) *server {
	t.Helper()
	env, _ := composeEnv(t, example)
	if env["REDIS_URL"] != "" {
		env["REDIS_URL"] = redistest.Start(t).Addr()
	}
	maps.Copy(env, more)
	return start(t, "ratelimitd", env)
}

// composeEnv returns the environment of the server in the example's compose.yaml, with its volumes copied below root.
func composeEnv(t *testing.T, example string) (env map[string]string, root string) {
	t.Helper()
	var file composeFile
	decodeStrict(t, read(t, example+"/compose.yaml"), func(string) any { return &file })
	s := file.Services["ratelimitd"]
	for _, needed := range s.DependsOn {
		if _, ok := file.Services[needed]; !ok {
			t.Errorf("compose.yaml has no service %s", needed)
		}
	}
	if envoy, ok := file.Services["envoy"]; ok && (envoy.NetworkMode != "service:ratelimitd" || len(envoy.Ports) > 0 ||
		!slices.Contains(s.Ports, "127.0.0.1:10000:10000")) {
		t.Errorf("%s: Envoy asks 127.0.0.1, so it has to share the network of ratelimitd, which publishes Envoy's port 10000", example)
	}
	if _, err := os.Stat(filepath.Join(example, s.Build, "Dockerfile")); err != nil {
		t.Errorf("compose.yaml does not build the Dockerfile: %v", err)
	}
	grace, err := time.ParseDuration(s.StopGracePeriod)
	if stop := drainDelay(t, s.Environment) + stopBound; err != nil || grace < stop {
		t.Errorf("%s: the server is killed after %v, %v, but may take %v to drain and stop", example, grace, err, stop)
	}
	root = t.TempDir()
	for _, v := range s.Volumes {
		here, there, _ := strings.Cut(strings.TrimSuffix(v, ":ro"), ":")
		dir := filepath.Join(root, there)
		testkit.Check(t, os.CopyFS(dir, os.DirFS(filepath.Join(example, here))))
	}
	env = s.Environment
	env["RUNTIME_ROOT"] = filepath.Join(root, env["RUNTIME_ROOT"])
	if host, _, _ := strings.Cut(env["REDIS_URL"], ":"); host != "" {
		if _, ok := file.Services[host]; !ok {
			t.Errorf("compose.yaml has no service %s", host)
		}
	}
	if env["USE_PROMETHEUS"] != "" {
		env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	}
	return env, root
}

// stopBound is how long stopping may take after DRAIN_DELAY, according to docs/operate.md.
const stopBound = 30 * time.Second

// drainDelay returns the DRAIN_DELAY of a server with this environment.
func drainDelay(t *testing.T, env map[string]string) time.Duration {
	t.Helper()
	text := env["DRAIN_DELAY"]
	if text == "" {
		text = regexp.MustCompile("(?m)^\\| `DRAIN_DELAY` \\| `(.*?)`").FindStringSubmatch(read(t, "../docs/settings.md"))[1]
	}
	delay, err := time.ParseDuration(text)
	testkit.Check(t, err)
	return delay
}

// TestCompose starts the server as compose/compose.yaml does, and sends a request for a user.
func TestCompose(t *testing.T) {
	t.Parallel()
	startCompose(t, "compose", nil).expect(t, "edge", "user", "ann",
		&rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 20, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
}

// TestPrometheusFiles has Prometheus' own tool check the configuration, and the rules that it names.
func TestPrometheusFiles(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	const config = "compose/prometheus.yaml"
	out, err := exec.Command("promtool", "check", "config", config).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS: 1 rule files found") {
		t.Errorf("promtool check config %s: %v; make test gets promtool\n%s", config, err, out)
	}
	var file composeFile
	decodeStrict(t, read(t, "compose/compose.yaml"), func(string) any { return &file })
	for _, v := range file.Services["prometheus"].Volumes {
		here, there, _ := strings.Cut(strings.TrimSuffix(v, ":ro"), ":")
		if _, err := os.Stat(filepath.Join("compose", here)); err != nil {
			t.Error(err)
		}
		named := filepath.Join("/etc/prometheus", "../../deploy/grafana/rules.yaml") // as prometheus.yaml does
		if filepath.Base(here) == "rules.yaml" && there != named {
			t.Errorf("compose.yaml mounts the rules at %s, Prometheus looks for them at %s", there, named)
		}
	}
}
