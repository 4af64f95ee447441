package manifests_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"helm.sh/helm/v4/pkg/strvals"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write what the chart renders into examples/kubernetes")

// rendered lists the files of examples/kubernetes that the chart renders.
var rendered = []struct{ file, values, head string }{
	{"ratelimitd.yaml", "", "# ratelimitd with everything it needs but Redis (redis.yaml): what the chart beside this file makes of its default values.\n"},
	{"testdata/secured.yaml", "secured-values.yaml", "# What the chart makes of secured-values.yaml. A test starts a server with it.\n"},
}

// render returns the chart as rendered by Helm with these values, in YAML, in the order of the plain manifests.
func render(t *testing.T, values string) (string, error) {
	t.Helper()
	return renderRelease(t, values, "")
}

// renderRelease is [render] for the chart of a release with this version, as packed by `make dist`; empty means the checkout's.
func renderRelease(t *testing.T, values, version string) (string, error) {
	t.Helper()
	chart, err := loader.LoadDir(filepath.Join(examples, "kubernetes", "chart"))
	check(t, err)
	if version != "" {
		chart.Metadata.AppVersion = version
	}
	given := map[string]any{}
	check(t, yaml.Unmarshal([]byte(values), &given))
	merged, err := util.ToRenderValues(chart, given, common.ReleaseOptions{Name: "ratelimitd", Namespace: "default"}, common.DefaultCapabilities)
	if err != nil {
		return "", err
	}
	files, err := engine.Render(chart, merged)
	if err != nil {
		return "", err
	}
	var docs []string
	for _, name := range []string{"rules", "tenants", "service", "deployment", "hpa", "pdb", "networkpolicy", "servicemonitor", "prometheusrule", "dashboard"} {
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

// TestChartRendered: the files are rendered from the chart with their values; -rewrite writes them.
func TestChartRendered(t *testing.T) {
	for _, r := range rendered {
		values := ""
		if r.values != "" {
			values = read(t, filepath.Join("kubernetes", r.values))
		}
		text, err := render(t, values)
		check(t, err)
		text = r.head + text
		if *rewrite {
			check(t, os.WriteFile(filepath.Join(examples, "kubernetes", r.file), []byte(text), 0o644))
		}
		if text != read(t, filepath.Join("kubernetes", r.file)) {
			t.Errorf("examples/kubernetes/%s is not what the chart renders; write it with: go -C tools/manifests test -run TestChartRendered . -rewrite", r.file)
		}
	}
}

// TestChartImage: the chart of a release uses that release's image, unless image.tag is set.
func TestChartImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ values, version, want string }{
		{"", "", "ratelimitd:dev"},
		{"image: {repository: ghcr.io/x/ratelimitd}", "1.2.3", "ghcr.io/x/ratelimitd:1.2.3"},
		{"", "1.2.3+dirty", "ratelimitd:1.2.3-dirty"}, // tags cannot contain a plus
		{"image: {tag: mine}", "1.2.3", "ratelimitd:mine"},
	} {
		text, err := renderRelease(t, c.values, c.version)
		check(t, err)
		if got := decode(t, text).deployment.Spec.Template.Spec.Containers[0].Image; got != c.want {
			t.Errorf("with %q the chart of %q has the image %s, want %s", c.values, c.version, got, c.want)
		}
	}
}

// TestChartValues: values have their effects, in a form that Kubernetes accepts.
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
env: {DEFAULT_ON_FAILURE: local, SHADOW_MODE: true, GRPC_MAX_CONNECTION_AGE: 10m, MEMORY_MAX_KEYS: 12345678, DRAIN_DELAY: 1m30s, USE_STATSD: true}
rules:
  a.yaml: |
    domain: a
    descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]
  b.yaml: "domain: b\n"
  c.yaml: "  domain: c\n  descriptors: []\n"
  d.yaml: "\n# \"d\": a comment\n\n  domain: d \n\n"
  e.yaml: "domain: e\ndescriptors: [{key: k, value: \"{{ \t }}\"}]"
  "no": ""
nodeSelector: {disk: fast}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}
podAnnotations: {a: b}
`)
	check(t, err)
	o := decode(t, text)
	checkDeployment(t, o)
	checkService(t, o)
	if grace := *o.deployment.Spec.Template.Spec.TerminationGracePeriodSeconds; grace != 90+35 {
		t.Errorf("the grace period is %d s, want DRAIN_DELAY and 35 s", grace)
	}
	if *o.deployment.Spec.Replicas != 3 || o.scaler != nil || o.budget != nil {
		t.Error("what is switched off is there, or the replicas are not 3")
	}
	if out := o.policy.Spec.Egress; len(out) != 3 || len(out[0].Ports) != 2 || out[2].Ports[0].Port.IntValue() != 4317 || o.policy.Spec.Ingress[0].From[0].PodSelector.MatchLabels["app"] != "envoy" {
		t.Errorf("network policy: %+v", o.policy.Spec)
	}
	for name, want := range map[string]string{
		"REDIS_TYPE": "sentinel", "REDIS_URL": "mymaster,s1:26379,s2:26379", "REDIS_TLS": "true", "SHADOW_MODE": "true",
		"REDIS_AUTH_FILE": "/etc/ratelimitd/redis/auth", "DEFAULT_ON_FAILURE": "local", "GRPC_MAX_CONNECTION_AGE": "10m",
		"MEMORY_MAX_KEYS": "12345678", "USE_STATSD": "true",
	} {
		if got := value(t, o.deployment, name); got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	rules := map[string]string{
		"a.yaml": "domain: a\ndescriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]\n",
		"b.yaml": "domain: b\n",
		"c.yaml": "  domain: c\n  descriptors: []\n",
		"d.yaml": "\n# \"d\": a comment\n\n  domain: d \n\n",
		"e.yaml": "domain: e\ndescriptors: [{key: k, value: \"{{ \t }}\"}]",
		"no":     "",
	}
	if !maps.Equal(o.rules.Data, rules) {
		t.Errorf("rules: %q, want what the values have: %q", o.rules.Data, rules)
	}
	pod := o.deployment.Spec.Template
	if pod.Spec.NodeSelector["disk"] != "fast" || pod.Spec.Tolerations[0].Key != "dedicated" || pod.Spec.Affinity.PodAntiAffinity == nil || pod.Annotations["a"] != "b" {
		t.Errorf("pod: %+v", pod)
	}
}

// TestChartSecured renders a deployment with certificates, a token, and additional containers.
func TestChartSecured(t *testing.T) {
	t.Parallel()
	o := decode(t, read(t, "kubernetes/testdata/secured.yaml"))
	checkDeployment(t, o)
	checkService(t, o)
	for name, want := range map[string]string{
		"NEAR_CACHE_KEYS": "2000000", "NEAR_LIMIT_RATIO": "0.9", "REDIS_TLS": "true", "REDIS_TLS_CACERT": "/etc/ratelimitd/redis-ca/ca.crt",
		"GRPC_SERVER_USE_TLS": "true", "GRPC_CLIENT_TLS_SAN": "envoy.edge.svc,spiffe://cluster.local/ns/edge/sa/envoy", "ADMIN_TOKEN_FILE": "/etc/ratelimitd/admin/token",
	} {
		if got := value(t, o.deployment, name); got != want {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
	if _, sample := o.rules.Data["edge.yaml"]; sample || len(o.rules.Data) != 1 {
		t.Errorf("the sample is served beside the user's rules: %q", o.rules.Data)
	}
	if table := o.tenants.Data["tenants"]; table != "tenant,plan\nacme,gold\n" || value(t, o.deployment, "TENANTS_FILE") != "/etc/ratelimitd/tenants/tenants" {
		t.Errorf("tenants: %q, in %s", table, value(t, o.deployment, "TENANTS_FILE"))
	}
	pod := o.deployment.Spec.Template
	if len(pod.Spec.Containers) != 2 || *pod.Spec.Containers[1].SecurityContext.RunAsUser != 1000700000 || pod.Spec.ImagePullSecrets[0].Name != "registry" {
		t.Errorf("containers: %+v, image pull secrets: %v", pod.Spec.Containers, pod.Spec.ImagePullSecrets)
	}
	c := pod.Spec.Containers[0]
	if p := c.ReadinessProbe; p.FailureThreshold != 5 || p.PeriodSeconds != 2 {
		t.Errorf("readiness probe: %v, want the chart's with 5 failures", p)
	}
	if c.StartupProbe == nil || c.StartupProbe.FailureThreshold != 60 || len(c.EnvFrom) != 1 {
		t.Errorf("startup probe %v, envFrom %v", c.StartupProbe, c.EnvFrom)
	}
	for what, annotations := range map[string]map[string]string{
		"deployment": o.deployment.Annotations, "service": o.service.Annotations, "rules": o.rules.Annotations, "tenants": o.tenants.Annotations, "scaler": o.scaler.Annotations,
		"budget": o.budget.Annotations, "policy": o.policy.Annotations,
	} {
		if annotations["example.com/team"] != "edge" {
			t.Errorf("%s has the annotations %v", what, annotations)
		}
	}
	if o.service.Annotations["example.com/scrape"] != "true" || pod.Annotations["example.com/inject"] != "false" || pod.Labels["example.com/tier"] != "edge" {
		t.Errorf("service %v, pod %v, %v", o.service.Annotations, pod.Annotations, pod.Labels)
	}
	checkDebugPort(t, &o)
	if p := o.service.Spec.Ports[0].AppProtocol; *p != "https" {
		t.Errorf("the gRPC port with TLS is announced as %s", *p)
	}
}

// checkDebugPort: the console is served over TLS to the named clients.
func checkDebugPort(t *testing.T, o *objects) {
	t.Helper()
	if value(t, o.deployment, "DEBUG_TLS") != "true" || has(o.deployment.Spec.Template.Spec.Containers[0].Env, "DEBUG_HOST") || ports(o.deployment)["debug"] != 6070 {
		t.Errorf("the debug port is not served over TLS: %+v", o.deployment.Spec.Template.Spec.Containers[0].Env)
	}
	in := o.policy.Spec.Ingress
	if last := in[len(in)-1]; last.Ports[0].Port.String() != "debug" || len(last.From) != 1 || last.From[0].NamespaceSelector == nil {
		t.Errorf("who may connect to the debug port: %+v", in)
	}
}

// TestChartDebugTLS: /metrics is scraped over TLS if the values configure it, and invalid combinations are rejected.
func TestChartDebugTLS(t *testing.T) {
	t.Parallel()
	const monitored = "serviceMonitor: {enabled: true, tlsConfig: {serverName: ratelimitd.edge.svc, ca: {secret: {name: ca, key: ca.crt}}}}\n"
	text, err := render(t, monitored+"grpc: {certSecret: tls}\ndebug: {tls: true}\nenv: {PROMETHEUS_PATH: /m}\n")
	check(t, err)
	o := decode(t, text)
	checkDeployment(t, o)
	checkService(t, o)
	e := o.monitor.Spec.Endpoints[0]
	if !slices.ContainsFunc(o.service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port && p.Port == 6070 }) || e.Path != "/metrics" {
		t.Errorf("what is scraped is %+v", e)
	}
	if e.Scheme == nil || *e.Scheme != "https" || e.TLSConfig == nil || *e.TLSConfig.ServerName != "ratelimitd.edge.svc" || e.TLSConfig.CA.Secret.Key != "ca.crt" {
		t.Errorf("it is scraped with %v, %+v", e.Scheme, e.TLSConfig)
	}
	if len(o.policy.Spec.Ingress) != 2 {
		t.Errorf("the debug port is open to someone whom nothing names: %+v", o.policy.Spec.Ingress)
	}
	for _, bad := range []string{"debug: {tls: true}", monitored, "debug: {clients: [{podSelector: {}}]}"} {
		if _, err := render(t, bad); err == nil {
			t.Errorf("%s is rendered", bad)
		}
	}
}

// TestChartMonitoring: the operator scrapes the metrics port and gets the rules, and Grafana's sidecar gets the dashboard.
func TestChartMonitoring(t *testing.T) {
	t.Parallel()
	text, err := render(t, `
serviceMonitor: {enabled: true, interval: 15s, labels: {release: stack}}
prometheusRule: {enabled: true, labels: {release: stack, app.kubernetes.io/name: other}}
grafanaDashboard: {enabled: true, annotations: {grafana_folder: Edge}}
annotations: {example.com/team: edge}
env: {PROMETHEUS_PATH: /m}
`)
	check(t, err)
	o := decode(t, text)
	checkDeployment(t, o)
	checkService(t, o)
	m := o.monitor
	if !matches(m.Spec.Selector.MatchLabels, o.service.Labels) || m.Labels["release"] != "stack" {
		t.Errorf("the monitor, %v, selects %v, the service is labelled %v", m.Labels, m.Spec.Selector.MatchLabels, o.service.Labels)
	}
	e := m.Spec.Endpoints[0]
	if !slices.ContainsFunc(o.service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == e.Port && p.Port == 9090 }) || e.Path != "/m" || e.Interval != "15s" {
		t.Errorf("what is scraped is %+v", e)
	}
	if o.alerts.Labels["release"] != "stack" || o.alerts.Labels["app.kubernetes.io/name"] != "ratelimitd" || len(o.alerts.Spec.Groups) < 2 {
		t.Errorf("alerts: %v, %d groups", o.alerts.Labels, len(o.alerts.Spec.Groups))
	}
	if got, want := o.alerts.Spec, strict[monitoringv1.PrometheusRuleSpec](t, read(t, "../deploy/grafana/rules.yaml")); !reflect.DeepEqual(&got, want) {
		t.Errorf("the rules are %+v, not those of deploy/grafana, %+v", got, want)
	}
	if d := o.dashboard; d.Labels["grafana_dashboard"] != "1" || d.Annotations["grafana_folder"] != "Edge" || d.Annotations["example.com/team"] != "edge" ||
		d.Data["ratelimitd.json"]+"\n" != read(t, "../deploy/grafana/dashboard.json") {
		t.Errorf("the dashboard: %v, %v, %d bytes", d.Labels, d.Annotations, len(d.Data["ratelimitd.json"]))
	}
}

// TestChartProbe: a probe of another kind replaces the HTTP request.
func TestChartProbe(t *testing.T) {
	t.Parallel()
	text, err := render(t, "{livenessProbe: {grpc: {port: 8081, service: ratelimit}}, terminationGracePeriodSeconds: 300}")
	check(t, err)
	pod := decode(t, text).deployment.Spec.Template.Spec
	if p := pod.Containers[0].LivenessProbe; p.HTTPGet != nil || p.GRPC == nil || p.GRPC.Port != 8081 || p.PeriodSeconds != 10 {
		t.Errorf("liveness probe: %v", p)
	}
	if *pod.TerminationGracePeriodSeconds != 300 {
		t.Errorf("the grace period is %d s, want 300", *pod.TerminationGracePeriodSeconds)
	}
}

// TestChartCommands: the commands of the README and of docs/kubernetes.md work with the chart: values of --set and -f have
// effects.
func TestChartCommands(t *testing.T) {
	t.Parallel()
	commands := regexp.MustCompile(`(?m)helm install ratelimitd (?:\.|examples/kubernetes)/chart(.*)$`).
		FindAllStringSubmatch(read(t, "kubernetes/README.md")+read(t, "../docs/kubernetes.md"), -1)
	if len(commands) < 3 {
		t.Fatalf("the pages have %d commands of helm", len(commands))
	}
	for _, command := range commands {
		values := map[string]any{}
		args := strings.Fields(command[1])
		for i := 0; i+1 < len(args); i += 2 {
			var err error
			switch args[i] {
			case "--set":
				err = strvals.ParseInto(args[i+1], values)
			case "-f":
				err = yaml.Unmarshal([]byte(read(t, filepath.Join("kubernetes", args[i+1]))), &values)
			default:
				t.Fatalf("helm install %s: this test knows --set and -f", command[1])
			}
			if err != nil {
				t.Fatalf("helm install %s: %v", command[1], err)
			}
		}
		text, err := yaml.Marshal(values)
		check(t, err)
		rendered, err := render(t, string(text))
		if err != nil {
			t.Fatalf("helm install %s: %v", command[1], err)
		}
		o := decode(t, rendered)
		checkDeployment(t, o)
		if image, set := values["image"].(map[string]any); set {
			if want := fmt.Sprint(image["repository"], ":", image["tag"]); o.deployment.Spec.Template.Spec.Containers[0].Image != want {
				t.Errorf("helm install %s: the image is %s", command[1], o.deployment.Spec.Template.Spec.Containers[0].Image)
			}
		}
	}
}

// TestChartRejects: values that would not work are rejected before installation.
func TestChartRejects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ values, want string }{
		{`redis: {type: multi}`, "type"},
		{`redis: {url: ""}`, "url"},
		{`replica: 3`, "replica"},
		{`env: {LOG_LEVEL: [info]}`, "LOG_LEVEL"},
		{`env: {DRAIN_DELAY: "5"}`, "DRAIN_DELAY"},
		{`rules: {"a/b.yaml": ""}`, "a/b.yaml"},
		{`grpc: {clientCASecret: ca}`, "certSecret"},
		{`networkPolicy: {redisPorts: [70000]}`, "redisPorts"},
		{`serviceMonitor: {interval: 15}`, "interval"},
		{`prometheusRule: {enable: true}`, "enable"},
		{`grafanaDashboard: {labels: {grafana_dashboard: 1}}`, "grafana_dashboard"},
	} {
		if _, err := render(t, tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want a rejection that names %s", tt.values, err, tt.want)
		}
	}
}
