package manifests_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAIGateway: the service has the address in the AI Gateway's chart, and its pods can be rolled out and stopped.
func TestAIGateway(t *testing.T) {
	t.Parallel()
	o := decode(t, read(t, "ai-gateway/ratelimitd.yaml"))
	checkService(t, o)
	c := &o.deployment.Spec.Template.Spec.Containers[0]
	checkVariables(t, c.Env)
	checkProbes(t, c)
	values := strict[struct {
		Controller struct {
			Address string `json:"quotaRateLimitServiceAddr"`
			Timeout int    `json:"quotaRateLimitTimeout"`
			Deny    bool   `json:"quotaRateLimitFailureModeDeny"`
		} `json:"controller"`
	}](t, read(t, "ai-gateway/values.yaml"))
	if at := o.service.Name + "." + o.service.Namespace; values.Controller.Address != at || o.service.Spec.Ports[0].Port != 8081 {
		t.Errorf("the service is %s, port %d; Envoy asks %s, port 8081", at, o.service.Spec.Ports[0].Port, values.Controller.Address)
	}
	if o.service.Spec.ClusterIP != corev1.ClusterIPNone || o.deployment.Namespace != o.service.Namespace {
		t.Error("a service with an address pins each gRPC connection to one replica; or it has no pods in its namespace")
	}
	if !matches(o.deployment.Spec.Selector.MatchLabels, o.deployment.Spec.Template.Labels) {
		t.Error("the deployment does not select its pods")
	}
}
