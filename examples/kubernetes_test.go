package examples_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// manifests has the parts of the Kubernetes objects that are needed to start the server as they do. The tests in
// tools/manifests check, with Kubernetes' types, that the objects are valid as a whole.
type manifests struct {
	rules   map[string]string // the files of the ConfigMap
	tenants map[string]string // the same of the ConfigMap whose name ends in -tenants
	pod     struct {
		Containers []struct {
			Command        []string
			Env            []struct{ Name, Value string }
			LivenessProbe  probe `yaml:"livenessProbe"`
			ReadinessProbe probe `yaml:"readinessProbe"`
			VolumeMounts   []struct {
				Name      string
				MountPath string `yaml:"mountPath"`
			} `yaml:"volumeMounts"`
		}
		Volumes []struct {
			Name      string
			ConfigMap *struct{ Name string } `yaml:"configMap"`
			Secret    *struct {
				SecretName string `yaml:"secretName"`
				Items      []struct{ Key, Path string }
			}
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
			Kind     string
			Metadata struct{ Name string }
			Data     map[string]string
			Spec     struct{ Template struct{ Spec yaml.Node } }
		}
		err := docs.Decode(&object)
		if errors.Is(err, io.EOF) {
			break
		}
		switch {
		case err != nil:
		case object.Kind == "ConfigMap" && strings.HasSuffix(object.Metadata.Name, "-tenants"):
			m.tenants = object.Data
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

// start runs the server as the Deployment does, with the symbolic links of a mounted ConfigMap, a real Redis and, instead
// of or in addition to the Deployment's, the given variables, and makes the requests of the probes.
func (m *manifests) start(t *testing.T, more map[string]string) *server {
	t.Helper()
	env := m.env()
	env["REDIS_URL"] = redistest.Start(t).Addr()
	maps.Copy(env, more)
	return m.startSecured(t, env, nil, insecure.NewCredentials())
}

// startSecured runs the server with these variables, in which paths are those of the pod, and the files of Secrets by
// their names.
func (m *manifests) startSecured(t *testing.T, env map[string]string, secrets map[string]files, creds credentials.TransportCredentials) *server {
	t.Helper()
	c := m.pod.Containers[0]
	root := t.TempDir()
	m.mount(t, root, secrets)
	for name, value := range env {
		if strings.HasPrefix(value, "/") {
			env[name] = filepath.Join(root, value)
		}
	}
	if env["USE_PROMETHEUS"] != "" {
		env["PROMETHEUS_ADDR"] = "127.0.0.1:0"
	}
	name := "ratelimitd"
	if len(c.Command) > 0 {
		name = filepath.Base(c.Command[0])
	}
	s := startSecured(t, name, env, creds)
	for _, p := range []probe{c.LivenessProbe, c.ReadinessProbe} {
		if err := s.get(t.Context(), p.HTTPGet.Path); err != nil {
			t.Errorf("probe: %v", err)
		}
	}
	return s
}

// files are texts by name.
type files map[string]string

// mount puts the pod's volumes below root.
func (m *manifests) mount(t *testing.T, root string, secrets map[string]files) {
	t.Helper()
	for _, mount := range m.pod.Containers[0].VolumeMounts {
		dir := filepath.Join(root, mount.MountPath)
		for _, v := range m.pod.Volumes {
			switch {
			case v.Name != mount.Name:
			case v.ConfigMap != nil && strings.HasSuffix(v.ConfigMap.Name, "-tenants"):
				mountConfigMap(t, dir, m.tenants)
			case v.ConfigMap != nil:
				mountConfigMap(t, dir, m.rules)
			case v.Secret != nil:
				content := files{}
				for _, item := range v.Secret.Items {
					text, ok := secrets[v.Secret.SecretName][item.Key]
					if !ok {
						t.Errorf("volume %s needs %s of Secret %s, which is not there", v.Name, item.Key, v.Secret.SecretName)
					}
					content[item.Path] = text
				}
				mountConfigMap(t, dir, content)
			}
		}
	}
}

// TestKubernetes starts the server as the plain manifests do, and sends a request for an address that their rules
// limit.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	s := readManifests(t, "kubernetes/ratelimitd.yaml").start(t, nil)
	s.expect(t, "edge", "remote_address", "10.0.0.1", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 60, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
}

// TestKubernetesCheck runs the command with which the README checks rules.
func TestKubernetesCheck(t *testing.T) {
	t.Parallel()
	const command = "`ratelimitd check DIR`"
	if !strings.Contains(read(t, "kubernetes/README.md"), command) {
		t.Fatalf("the README has no %s", command)
	}
	dir := t.TempDir()
	mountConfigMap(t, dir, readManifests(t, "kubernetes/ratelimitd.yaml").rules)
	out, err := exec.Command(binaries.Path(t, "ratelimitd"), "check", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok, 1 rule in 1 file, 0 warnings") {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// clientOf returns what a client with a certificate of ca, and the name that secured-values.yaml asks for, needs for the
// server of the given name.
func clientOf(t *testing.T, ca *certstest.CA, server string) credentials.TransportCredentials { //nolint:ireturn // what grpc has
	t.Helper()
	client := ca.Issue(t, x509.Certificate{DNSNames: []string{"envoy.edge.svc"}}).TLS(t)
	return credentials.NewTLS(&tls.Config{
		ServerName: server, RootCAs: ca.Pool(), Certificates: []tls.Certificate{client}, MinVersion: tls.VersionTLS12,
	})
}

// TestKubernetesSecured starts the server as the Deployment of secured-values.yaml does: over a Redis that takes only TLS,
// with clients' certificates and a password, from a CA that no one else trusts; and asks it with a client's certificate.
func TestKubernetesSecured(t *testing.T) {
	t.Parallel()
	m := readManifests(t, "kubernetes/testdata/secured.yaml")
	store := redistest.NewCertificates(t, "localhost")
	db := redistest.Start(t, append(store.Config(), "user default off", "user limiter on >sesame ~rl:* +@all")...)
	ca := certstest.NewCA(t, "ratelimitd")
	cert := ca.Issue(t, x509.Certificate{DNSNames: []string{"ratelimitd.default.svc"}})
	secrets := map[string]files{
		"redis-ca":         {"ca.crt": read(t, store.CA)},
		"redis-client":     {"tls.crt": read(t, store.Cert), "tls.key": read(t, store.Key)},
		"redis-auth":       {"auth": "limiter:sesame"},
		"ratelimitd-tls":   {"tls.crt": string(cert.Cert), "tls.key": string(cert.Key), "ca.crt": string(ca.PEM)},
		"ratelimitd-admin": {"token": "secret"},
	}
	env := m.env()
	env["REDIS_URL"] = fmt.Sprintf("localhost:%d", db.Port())
	s := m.startSecured(t, env, secrets, clientOf(t, ca, "ratelimitd.default.svc"))
	s.expect(t, "shop", "user", "ann", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 60, Unit: rlsv3.RateLimitResponse_RateLimit_MINUTE})
	s.expect(t, "shop", "customer", "acme", &rlsv3.RateLimitResponse_RateLimit{RequestsPerUnit: 5000, Unit: rlsv3.RateLimitResponse_RateLimit_HOUR})
	if log := s.Log.String(); strings.Contains(log, "no admin token is right") {
		t.Errorf("the admin token cannot be read:\n%s", log)
	}
	browser := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{ServerName: "ratelimitd.default.svc", RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12},
	}}
	answer, err := browser.Get("https://" + s.At["DEBUG"] + "/ui/login")
	testkit.Check(t, err)
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(text), "ADMIN_TOKEN_FILE") {
		t.Errorf("the console over TLS: %d %s %v", answer.StatusCode, text, err)
	}
}

// mountConfigMap lays out files as the kubelet does: ..data is a link to a hidden directory, and each file is a link
// through ..data.
func mountConfigMap(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	const version = "..2026_01_01_00_00_00.1"
	testkit.Check(t, os.MkdirAll(filepath.Join(dir, version), 0o755))
	links := map[string]string{"..data": version}
	for name, text := range files {
		links[name] = filepath.Join("..data", name)
		testkit.Check(t, os.WriteFile(filepath.Join(dir, version, name), []byte(text), 0o600))
	}
	for name, target := range links {
		if strings.Contains(name, "/") {
			t.Fatalf("%q is no name of a ConfigMap's file", name)
		}
		testkit.Check(t, os.Symlink(target, filepath.Join(dir, name)))
	}
}
