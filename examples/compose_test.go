package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// composeFile has the fields of a compose file that these examples use.
type composeFile struct {
	Services map[string]struct {
		Build           string
		Image           string
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

// startCompose starts the server with the environment of the example's compose.yaml, with its volumes replaced by the
// directories that they mount, and with a real Redis if it asks for one.
func startCompose(t *testing.T, example string) *server {
	t.Helper()
	var file composeFile
	decodeStrict(t, read(t, example+"/compose.yaml"), func(string) any { return &file })
	s := file.Services["ratelimitd"]
	for _, needed := range s.DependsOn {
		if _, ok := file.Services[needed]; !ok {
			t.Errorf("compose.yaml has no service %s", needed)
		}
	}
	if _, err := os.Stat(filepath.Join(example, s.Build, "Dockerfile")); err != nil {
		t.Errorf("compose.yaml does not build the Dockerfile: %v", err)
	}
	root := t.TempDir()
	for _, v := range s.Volumes {
		here, there, _ := strings.Cut(strings.TrimSuffix(v, ":ro"), ":")
		dir := filepath.Join(root, there)
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(example, here))); err != nil {
			t.Fatal(err)
		}
	}
	env := s.Environment
	env["RUNTIME_ROOT"] = filepath.Join(root, env["RUNTIME_ROOT"])
	if host, _, _ := strings.Cut(env["REDIS_URL"], ":"); host != "" {
		if _, ok := file.Services[host]; !ok {
			t.Errorf("compose.yaml has no service %s", host)
		}
		env["REDIS_URL"] = redistest.Start(t).Addr()
	}
	if env["USE_PROMETHEUS"] != "" {
		env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	}
	return start(t, "ratelimitd", env)
}

// TestCompose starts the server as compose/compose.yaml does, and sends a request for a user.
func TestCompose(t *testing.T) {
	t.Parallel()
	startCompose(t, "compose").expect(t, "edge", "user", "ann",
		&rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 20, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
}

// TestPrometheusFiles has Prometheus' own tool check the configuration and the alerts.
func TestPrometheusFiles(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"config", "compose/prometheus.yaml"}, {"rules", "compose/alerts.yaml"}} {
		out, err := exec.Command("promtool", append([]string{"check"}, args...)...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool check %s: %v; make test gets promtool\n%s", strings.Join(args, " "), err, out)
		}
	}
}
