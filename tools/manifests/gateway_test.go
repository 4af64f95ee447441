package manifests_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/envoyproxy/gateway/api/v1alpha1/validation"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	gwv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

func strict[T any](t *testing.T, text string) *T {
	t.Helper()
	into := new(T)
	check(t, yaml.UnmarshalStrict([]byte(text), into))
	return into
}

// gateway returns the configuration in envoy-gateway.yaml, with Envoy Gateway's own defaults filled in.
func gateway(t *testing.T) *egv1a1.EnvoyGateway {
	t.Helper()
	return gatewayOf(t, "envoy-gateway.yaml")
}

// gatewayOf returns the configuration in another file.
func gatewayOf(t *testing.T, file string) *egv1a1.EnvoyGateway {
	t.Helper()
	config := strict[corev1.ConfigMap](t, read(t, "envoy-gateway/"+file))
	if config.Name != "envoy-gateway-config" || config.Namespace != "envoy-gateway-system" {
		t.Errorf("Envoy Gateway does not read a ConfigMap %s/%s", config.Namespace, config.Name)
	}
	g := strict[egv1a1.EnvoyGateway](t, config.Data["envoy-gateway.yaml"])
	check(t, validation.ValidateEnvoyGateway(g))
	return g
}

// TestEnvoyGateway: the configuration is valid for Envoy Gateway, and replaces envoyproxy/ratelimit by ratelimitd.
func TestEnvoyGateway(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.Provider.Kubernetes.RateLimitDeployment.Container
	if !strings.Contains(*c.Image, "ratelimitd") {
		t.Errorf("the image is %s", *c.Image)
	}
	if r := g.RateLimit; r.Backend.Redis.URL == nil || *r.Backend.Redis.URL == "" || r.FailClosed {
		t.Errorf("rate limit: %+v", r)
	}
	if g.Provider.Kubernetes.RateLimitHpa == nil || g.Provider.Kubernetes.RateLimitPDB == nil {
		t.Error("no autoscaler, or no disruption budget")
	}
	checkVariables(t, c.Env)
}

// TestEnvoyGatewayOverlay: the Deployment mounts the ConfigMap of the overlay where the server looks for it, and is otherwise the
// same as without.
func TestEnvoyGatewayOverlay(t *testing.T) {
	t.Parallel()
	g := gatewayOf(t, "with-overlay.yaml")
	d := g.Provider.Kubernetes.RateLimitDeployment
	checkVariables(t, d.Container.Env)
	overlay := strict[corev1.ConfigMap](t, read(t, "envoy-gateway/overlay.yaml"))
	mount, volume := d.Container.VolumeMounts[0], d.Pod.Volumes[0]
	if overlay.Namespace != "envoy-gateway-system" || volume.ConfigMap.Name != overlay.Name || mount.Name != volume.Name || mount.SubPath != "" {
		t.Errorf("the ConfigMap %s/%s, volume %+v, mount %+v", overlay.Namespace, overlay.Name, volume, mount)
	}
	if !slices.ContainsFunc(d.Container.Env, func(v corev1.EnvVar) bool { return v.Name == "RULES_OVERLAY" && v.Value == mount.MountPath }) {
		t.Errorf("RULES_OVERLAY is not %s", mount.MountPath)
	}
	plain := gateway(t)
	d.Container.VolumeMounts, d.Pod.Volumes, d.Container.Env = nil, nil, plain.Provider.Kubernetes.RateLimitDeployment.Container.Env
	if !reflect.DeepEqual(plain, g) {
		t.Errorf("beside the overlay %+v is not %+v", g, plain)
	}
}

// TestDeployment: the server supports everything that Envoy Gateway sets, mounts and probes in the Deployment that it
// creates. The Deployment is the one that Envoy Gateway's own tests expect.
func TestDeployment(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/gateway").Output()
	check(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "internal/infrastructure/kubernetes/ratelimit/testdata/deployments/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no deployments in %s: %v", out, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		check(t, err)
		pod := strict[appsv1.Deployment](t, string(raw)).Spec.Template.Spec
		at := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == "envoy-ratelimit" })
		c := pod.Containers[at]
		if !slices.Equal(c.Command, []string{"/bin/ratelimit"}) {
			t.Errorf("%s starts %q; the image has /bin/ratelimit", filepath.Base(file), c.Command)
		}
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if p.HTTPGet.Path != "/healthcheck" || p.HTTPGet.Port.IntValue() != 8080 {
				t.Errorf("%s probes %s at port %s", filepath.Base(file), p.HTTPGet.Path, p.HTTPGet.Port.String())
			}
		}
		checkVariables(t, slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { // those that their tests invent, and OpenTelemetry's own
			return strings.HasPrefix(v.Name, "env_") || strings.HasPrefix(v.Name, "OTEL_")
		}))
	}
}

// TestTokenPolicy: the last header of the budget, which has its limit, is the one that the gateway sets for each request.
func TestTokenPolicy(t *testing.T) {
	t.Parallel()
	client, budget, _ := strings.Cut(read(t, "envoy-gateway/llm.yaml"), "\n---\n")
	set := strict[egv1a1.ClientTrafficPolicy](t, client).Spec.Headers.EarlyRequestHeaders.Set
	rules := strict[egv1a1.BackendTrafficPolicy](t, budget).Spec.RateLimit.Global.Rules
	headers := rules[0].ClientSelectors[0].Headers
	last := headers[len(headers)-1]
	if len(set) != 1 || last.Name != string(set[0].Name) || *last.Type != egv1a1.HeaderMatchDistinct || *rules[0].Cost.Request.Number != 0 {
		t.Errorf("the gateway sets %+v, the rule is %+v", set, rules[0])
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	p := strict[egv1a1.BackendTrafficPolicy](t, read(t, "envoy-gateway/policy.yaml"))
	if len(p.Spec.TargetRefs) != 1 || p.Spec.TargetRefs[0].Kind != gwv1.Kind("HTTPRoute") {
		t.Errorf("the policy is for %+v", p.Spec.TargetRefs)
	}
	//nolint:staticcheck // older versions of Envoy Gateway want the type
	if p.Spec.RateLimit.Type == nil || *p.Spec.RateLimit.Type != egv1a1.GlobalRateLimitType || len(p.Spec.RateLimit.Global.Rules) != 3 {
		t.Errorf("rate limit: %+v", p.Spec.RateLimit)
	}
	for _, r := range p.Spec.RateLimit.Global.Rules {
		if r.Limit.Requests == 0 || !slices.Contains([]egv1a1.RateLimitUnit{egv1a1.RateLimitUnitMinute, egv1a1.RateLimitUnitHour, egv1a1.RateLimitUnitDay}, r.Limit.Unit) {
			t.Errorf("limit %+v", r.Limit)
		}
	}
}
