package manifests_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write examples/kubernetes/ratelimitd.yaml from the chart")

const head = "# ratelimitd with everything it needs but Redis (redis.yaml): what the chart beside this file makes of its default values.\n"

// render returns the chart as rendered by Helm with these values, in YAML, in the order of the plain manifests.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	chart, err := loader.LoadDir(filepath.Join(examples, "kubernetes", "chart"))
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]any{}
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	merged, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: "ratelimitd", Namespace: "default"}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, merged)
	if err != nil {
		return "", err
	}
	var docs []string
	for _, name := range []string{"rules", "service", "deployment", "hpa", "pdb", "networkpolicy"} {
		path := "ratelimitd/templates/" + name + ".yaml"
		text, ok := files[path]
		if !ok {
			t.Fatalf("the chart has no %s", path)
		}
		if text = strings.TrimSpace(text); text != "" {
			docs = append(docs, text+"\n")
		}
		delete(files, path)
	}
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			t.Errorf("%s is rendered, but in no list of what the chart has", name)
		}
	}
	if !strings.Contains(files["ratelimitd/templates/NOTES.txt"], "ratelimitd.default.svc:8081") {
		t.Errorf("the notes do not say where to ask: %s", files["ratelimitd/templates/NOTES.txt"])
	}
	return strings.Join(docs, "---\n"), nil
}

// TestChartIsPlain: the plain manifests are those of the chart with its default values; -update writes them.
func TestChartIsPlain(t *testing.T) {
	text, err := render(t, "")
	if err != nil {
		t.Fatal(err)
	}
	text = head + text
	if *update {
		if err := os.WriteFile(filepath.Join(examples, "kubernetes", "ratelimitd.yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if text != read(t, "kubernetes/ratelimitd.yaml") {
		t.Error("examples/kubernetes/ratelimitd.yaml is not what the chart renders; write it with: go -C tools/manifests test -run TestChartIsPlain . -update")
	}
}

// TestChartValues: what the values ask for is rendered, in a form that Kubernetes accepts.
func TestChartValues(t *testing.T) {
	t.Parallel()
	text, err := render(t, `
replicas: 3
autoscaling: {enabled: false}
podDisruptionBudget: {enabled: false}
networkPolicy:
  clients: [{podSelector: {matchLabels: {app: "envoy"}}}]
  redisPorts: [6379, 26379]
  extraEgress: [{ports: [{port: 4317, protocol: TCP}]}]
redis: {type: sentinel, url: "mymaster,s1:26379,s2:26379", tls: true, authSecret: redis}
env: {DEFAULT_ON_FAILURE: local, SHADOW_MODE: true, GRPC_MAX_CONNECTION_AGE: 10m}
rules:
  a.yaml: |
    domain: a
    descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]
  b.yaml: "domain: b\n"
nodeSelector: {disk: fast}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}
podAnnotations: {a: b}
`)
	if err != nil {
		t.Fatal(err)
	}
	o := decode(t, text)
	checkDeployment(t, o)
	checkService(t, o)
	if *o.deployment.Spec.Replicas != 3 || o.scaler != nil || o.budget != nil {
		t.Error("what is switched off is there, or the replicas are not 3")
	}
	if out := o.policy.Spec.Egress; len(out) != 3 || len(out[0].Ports) != 2 || out[2].Ports[0].Port.IntValue() != 4317 || o.policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels["app"] != "envoy" {
		t.Errorf("network policy: %+v", o.policy.Spec)
	}
	for name, want := range map[string]string{
		"REDIS_TYPE": "sentinel", "REDIS_URL": "mymaster,s1:26379,s2:26379", "REDIS_TLS": "true", "SHADOW_MODE": "true",
		"REDIS_AUTH_FILE": "/etc/ratelimitd/redis/auth", "DEFAULT_ON_FAILURE": "local", "GRPC_MAX_CONNECTION_AGE": "10m",
	} {
		if got := value(t, o.deployment, name); got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	if o.rules.Data["b.yaml"] != "domain: b\n" || !strings.HasPrefix(o.rules.Data["a.yaml"], "domain: a\ndescriptors:") {
		t.Errorf("rules: %q", o.rules.Data)
	}
	pod := o.deployment.Spec.Template
	if pod.Spec.NodeSelector["disk"] != "fast" || pod.Spec.Tolerations[0].Key != "dedicated" || pod.Spec.Affinity.PodAntiAffinity == nil || pod.Annotations["a"] != "b" {
		t.Errorf("pod: %+v", pod)
	}
}

// TestChartRefuses: values that would not work are rejected before anything is installed.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ values, want string }{
		{`redis: {type: multi}`, "type"},
		{`redis: {url: ""}`, "url"},
		{`replica: 3`, "replica"},
		{`env: {LOG_LEVEL: [info]}`, "LOG_LEVEL"},
	} {
		if _, err := render(t, tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want a refusal that names %s", tt.values, err, tt.want)
		}
	}
}
