package manifests_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

// examples is the directory of the files under test.
const examples = "../../examples"

// check ends the test if there is an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(examples, path))
	check(t, err)
	return string(raw)
}

// objects are the objects of one set of manifests, by kind; nil if there is none.
type objects struct {
	rules      *corev1.ConfigMap
	tenants    *corev1.ConfigMap
	service    *corev1.Service
	deployment *appsv1.Deployment
	scaler     *autoscalingv2.HorizontalPodAutoscaler
	budget     *policyv1.PodDisruptionBudget
	policy     *networkingv1.NetworkPolicy
	monitor    *monitoringv1.ServiceMonitor
	alerts     *monitoringv1.PrometheusRule
	dashboard  *corev1.ConfigMap
}

// decode decodes manifests into Kubernetes' types, and rejects unknown fields.
func decode(t *testing.T, text string) objects {
	t.Helper()
	var o objects
	for i, doc := range regexp.MustCompile(`(?m)^---\n`).Split(text, -1) {
		into := o.target(t, doc)
		if into == nil {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(doc), into); err != nil {
			t.Fatalf("document %d: %v\n%s", i+1, err, doc)
		}
	}
	return o
}

// target returns a new object to decode a document into; nil for one without content.
func (o *objects) target(t *testing.T, doc string) any { //nolint:ireturn // one of many types
	t.Helper()
	var head struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		t.Fatalf("%v\n%s", err, doc)
	}
	switch head.APIVersion + " " + head.Kind {
	case "v1 ConfigMap":
		switch {
		case strings.HasSuffix(head.Metadata.Name, "-dashboard"):
			return fresh(&o.dashboard)
		case strings.HasSuffix(head.Metadata.Name, "-tenants"):
			return fresh(&o.tenants)
		}
		return fresh(&o.rules)
	case "v1 Service":
		return fresh(&o.service)
	case "apps/v1 Deployment":
		return fresh(&o.deployment)
	case "autoscaling/v2 HorizontalPodAutoscaler":
		return fresh(&o.scaler)
	case "policy/v1 PodDisruptionBudget":
		return fresh(&o.budget)
	case "networking.k8s.io/v1 NetworkPolicy":
		return fresh(&o.policy)
	case "monitoring.coreos.com/v1 ServiceMonitor":
		return fresh(&o.monitor)
	case "monitoring.coreos.com/v1 PrometheusRule":
		return fresh(&o.alerts)
	case " ":
		return nil
	}
	t.Fatalf("a document of kind %s %s, which no test looks at", head.APIVersion, head.Kind)
	return nil
}

func fresh[T any](p **T) *T {
	*p = new(T)
	return *p
}

// TestIstio: the objects of Istio's example are valid for Kubernetes. Their contents are checked by the tests in
// examples.
func TestIstio(t *testing.T) {
	t.Parallel()
	o := decode(t, read(t, "istio/ratelimitd.yaml"))
	checkDeployment(t, o)
}

func TestRedis(t *testing.T) {
	t.Parallel()
	o := decode(t, read(t, "kubernetes/redis.yaml"))
	checkService(t, o)
	if got, want := o.service.Name+":6379", value(t, plain(t).deployment, "REDIS_URL"); got != want {
		t.Errorf("Redis is at %s, the server looks for it at %s", got, want)
	}
	args := strings.Join(o.deployment.Spec.Template.Spec.Containers[0].Args, " ")
	if !strings.Contains(args, "--maxmemory-policy noeviction") {
		t.Errorf("Redis may drop live counters: %s", args)
	}
}

func plain(t *testing.T) objects {
	t.Helper()
	return decode(t, read(t, "kubernetes/ratelimitd.yaml"))
}

// TestPlain: the plain manifests are consistent.
func TestPlain(t *testing.T) {
	t.Parallel()
	o := plain(t)
	checkDeployment(t, o)
	checkService(t, o)
	if o.scaler == nil || o.budget == nil || o.policy == nil {
		t.Fatal("an autoscaler, a disruption budget or a network policy is missing")
	}
	if ref := o.scaler.Spec.ScaleTargetRef; ref.Kind != "Deployment" || ref.Name != o.deployment.Name || o.deployment.Spec.Replicas != nil {
		t.Errorf("the autoscaler scales %s %s, and the deployment sets replicas itself: %v", ref.Kind, ref.Name, o.deployment.Spec.Replicas)
	}
	labels := o.deployment.Spec.Template.Labels
	for what, selector := range map[string]map[string]string{
		"deployment":        o.deployment.Spec.Selector.MatchLabels,
		"disruption budget": o.budget.Spec.Selector.MatchLabels,
		"network policy":    o.policy.Spec.PodSelector.MatchLabels,
	} {
		if !matches(selector, labels) {
			t.Errorf("the selector of the %s, %v, does not meet the pods' labels %v", what, selector, labels)
		}
	}
	named := ports(o.deployment)
	for _, rule := range o.policy.Spec.Ingress {
		for _, p := range rule.Ports {
			if _, ok := named[p.Port.String()]; !ok {
				t.Errorf("the network policy lets %s in, which the container does not name", p.Port)
			}
		}
	}
	if o.service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Error("a service with an address pins each gRPC connection to one replica")
	}
}

// checkService: every port of the service leads to a port of the pods that it selects.
func checkService(t *testing.T, o objects) {
	t.Helper()
	if labels := o.deployment.Spec.Template.Labels; !matches(o.service.Spec.Selector, labels) {
		t.Errorf("the service selects %v, the pods are labelled %v", o.service.Spec.Selector, labels)
	}
	named := ports(o.deployment)
	for _, p := range o.service.Spec.Ports {
		if number, ok := named[p.TargetPort.String()]; !ok || number != p.Port {
			t.Errorf("port %s of the service leads to %s, %d", p.Name, p.TargetPort.String(), number)
		}
	}
}

// checkDeployment: the pod is as unprivileged as the image allows, has time to drain and stop, mounts its rules such
// that changes of the ConfigMap are noticed, and sets no variable that the server does not know.
func checkDeployment(t *testing.T, o objects) {
	t.Helper()
	pod := o.deployment.Spec.Template.Spec
	c := pod.Containers[0]
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser < 10_000 {
		t.Error("the pod may run as root")
	}
	if s := c.SecurityContext; !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || s.Capabilities.Drop[0] != "ALL" {
		t.Error("the container may do more than it has to")
	}
	checkProbes(t, &c)
	if grace, stop := *pod.TerminationGracePeriodSeconds, stops(t, c.Env); time.Duration(grace)*time.Second < stop {
		t.Errorf("the pod is killed after %d s, but may take %v to drain and stop", grace, stop)
	}
	if tls := has(c.Env, "DEBUG_TLS"); !tls && value(t, o.deployment, "DEBUG_HOST") != "127.0.0.1" {
		t.Error("the debug port is open to other pods, without TLS")
	}
	for name, want := range map[string]string{"RUNTIME_WATCH_ROOT": "false", "RUNTIME_IGNOREDOTFILES": "true"} {
		if got := value(t, o.deployment, name); got != want {
			t.Errorf("%s=%s; a ConfigMap needs %s", name, got, want)
		}
	}
	mounted, volumes := false, map[string]bool{}
	for _, v := range pod.Volumes {
		mounted = mounted || v.ConfigMap != nil && v.ConfigMap.Name == o.rules.Name
		volumes[v.Name] = true
	}
	for _, m := range c.VolumeMounts {
		if m.SubPath != "" {
			t.Errorf("%s is mounted by subPath, and would never change", m.MountPath)
		}
		if !volumes[m.Name] {
			t.Errorf("%s is mounted from %s, which is no volume", m.MountPath, m.Name)
		}
	}
	if !mounted {
		t.Errorf("nothing mounts the ConfigMap %s", o.rules.Name)
	}
	if len(volumes) < len(pod.Volumes) {
		t.Errorf("two volumes have one name: %v", pod.Volumes)
	}
	checkVariables(t, c.Env)
}

// checkProbes: the probes ask what Redis does not fail later on, and bear an answer that takes a second.
func checkProbes(t *testing.T, c *corev1.Container) {
	t.Helper()
	if c.LivenessProbe.HTTPGet.Path != "/livez" || c.ReadinessProbe.HTTPGet.Path != "/healthcheck" {
		t.Error("the probes do not ask /livez and /healthcheck")
	}
	for what, p := range map[string]*corev1.Probe{"liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		if p.TimeoutSeconds < 2 || p.FailureThreshold == 1 { // unset means 1 s, and 3 failures
			t.Errorf("one slow second fails the %s probe: %v", what, p)
		}
	}
}

// stops returns how long a server with these variables may take to stop: DRAIN_DELAY, and what the documentation says.
func stops(t *testing.T, env []corev1.EnvVar) time.Duration {
	t.Helper()
	delay := regexp.MustCompile("(?m)^\\| `DRAIN_DELAY` \\| `(.*?)`").FindStringSubmatch(read(t, "../docs/settings.md"))
	bound := regexp.MustCompile(`DRAIN_DELAY plus (\d+ s) before you kill it`).FindStringSubmatch(read(t, "../docs/operate.md"))
	if delay == nil || bound == nil {
		t.Fatalf("the documentation does not say how long stopping takes: %q, %q", delay, bound)
	}
	for _, v := range env {
		if v.Name == "DRAIN_DELAY" {
			delay[1] = v.Value
		}
	}
	var sum time.Duration
	for _, text := range []string{delay[1], strings.ReplaceAll(bound[1], " ", "")} {
		d, err := time.ParseDuration(text)
		check(t, err)
		sum += d
	}
	return sum
}

// checkVariables: every variable is in the table of docs/settings.md, which is generated from the server's.
func checkVariables(t *testing.T, env []corev1.EnvVar) {
	t.Helper()
	table := read(t, "../docs/settings.md")
	set := map[string]bool{}
	for _, v := range env {
		if set[v.Name] {
			t.Errorf("%s is set twice", v.Name)
		}
		set[v.Name] = true
		if !strings.Contains(table, "| `"+v.Name+"` |") {
			t.Errorf("the server has no variable %s", v.Name)
		}
	}
}

// ports returns the container's ports by name.
func ports(d *appsv1.Deployment) map[string]int32 {
	named := map[string]int32{}
	for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
		named[p.Name] = p.ContainerPort
	}
	return named
}

func value(t *testing.T, d *appsv1.Deployment, name string) string {
	t.Helper()
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		if v.Name == name {
			return v.Value
		}
	}
	t.Fatalf("the deployment does not set %s", name)
	return ""
}

// matches reports whether a selector meets labels.
func matches(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// has reports whether a variable is set.
func has(env []corev1.EnvVar, name string) bool {
	return slices.ContainsFunc(env, func(v corev1.EnvVar) bool { return v.Name == name })
}
