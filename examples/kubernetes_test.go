package examples_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// manifests has the parts of the Kubernetes objects that are needed to start the server as they do. The tests in
// tools/manifests check, with Kubernetes' types, that the objects are valid as a whole.
type manifests struct {
	rules map[string]string // the files of the ConfigMap
	pod   struct {
		Containers []struct {
			Command        []string
			Env            []struct{ Name, Value string }
			LivenessProbe  probe `yaml:"livenessProbe"`
			ReadinessProbe probe `yaml:"readinessProbe"`
			VolumeMounts   []struct {
				MountPath string `yaml:"mountPath"`
			} `yaml:"volumeMounts"`
		}
	}
}

type probe struct {
	HTTPGet struct{ Path string } `yaml:"httpGet"`
}

// readManifests reads the ConfigMap and the Deployment of a file, and loads the rules.
func readManifests(t *testing.T, path string) *manifests {
	t.Helper()
	m := &manifests{}
	for docs := yaml.NewDecoder(strings.NewReader(read(t, path))); ; {
		var object struct {
			Kind string
			Data map[string]string
			Spec struct{ Template struct{ Spec yaml.Node } }
		}
		err := docs.Decode(&object)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
		case object.Kind == "ConfigMap":
			m.rules = object.Data
		case object.Kind == "Deployment":
			err = object.Spec.Template.Spec.Decode(&m.pod)
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for name, text := range m.rules {
		load(t, descriptors.Options{Strict: true}, descriptors.Source{Name: name, Data: []byte(text)})
	}
	return m
}

// env returns the container's variables.
func (m *manifests) env() map[string]string {
	env := map[string]string{}
	for _, v := range m.pod.Containers[0].Env {
		env[v.Name] = v.Value
	}
	return env
}

// start runs the server as the Deployment does, with the symbolic links of a mounted ConfigMap and a real Redis, and
// makes the requests of the probes.
func (m *manifests) start(t *testing.T) *server {
	t.Helper()
	c := m.pod.Containers[0]
	root := t.TempDir()
	mountConfigMap(t, filepath.Join(root, c.VolumeMounts[0].MountPath), m.rules)
	env := m.env()
	env["REDIS_URL"] = redistest.Start(t).Addr()
	env["RUNTIME_ROOT"] = filepath.Join(root, env["RUNTIME_ROOT"])
	if env["USE_PROMETHEUS"] != "" {
		env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	}
	name := "ratelimitd"
	if len(c.Command) > 0 {
		name = filepath.Base(c.Command[0])
	}
	s := start(t, name, env)
	for _, p := range []probe{c.LivenessProbe, c.ReadinessProbe} {
		if err := s.get(t.Context(), p.HTTPGet.Path); err != nil {
			t.Errorf("probe: %v", err)
		}
	}
	return s
}

// TestKubernetes starts the server as the plain manifests do, and sends a request for an address that their rules
// limit.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	s := readManifests(t, "kubernetes/ratelimitd.yaml").start(t)
	s.expect(t, "edge", "remote_address", "10.0.0.1", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 60, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
}

// mountConfigMap lays out files as the kubelet does: ..data is a link to a hidden directory, and each file is a link
// through ..data.
func mountConfigMap(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	const version = "..2026_01_01_00_00_00.1"
	if err := os.MkdirAll(filepath.Join(dir, version), 0o755); err != nil {
		t.Fatal(err)
	}
	links := map[string]string{"..data": version}
	for name, text := range files {
		links[name] = filepath.Join("..data", name)
		if err := os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range links {
		if strings.Contains(name, "/") {
			t.Fatalf("%q is no name of a ConfigMap's file", name)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}
