package e2e

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"gopkg.in/yaml.v3"
)

// literalCosts returns the documents of a file in which no policy has a cost as a number, beside patches that have the same effect: without
// Kubernetes, Envoy Gateway 1.9.1 panics at them.
func literalCosts(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	d := yaml.NewDecoder(strings.NewReader(text))
	for {
		var doc tree
		if err := d.Decode(&doc); err != nil {
			break // at the end; the file is valid, as others see to
		}
		patches := withoutCosts(doc)
		for _, x := range append([]tree{doc}, patches...) {
			testkit.Check(t, e.Encode(x))
		}
	}
	return out.String()
}

// withoutCosts takes the costs that are numbers out of a policy for one route, and returns what has the same effect.
func withoutCosts(policy tree) (patches []tree) {
	spec := child(policy, "spec")
	for i, rule := range items(child(child(spec, "rateLimit"), "global")["rules"]) {
		cost := child(child(rule, "cost"), "request")
		if cost["from"] != "Number" {
			continue
		}
		if delete(child(rule, "cost"), "request"); len(child(rule, "cost")) == 0 {
			delete(rule, "cost")
		}
		route := items(spec["targetRefs"])[0]["name"]
		patches = append(patches, tree{
			"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "EnvoyPatchPolicy", "metadata": tree{"name": fmt.Sprintf("%v-%d", route, i), "namespace": "default"},
			"spec": tree{
				"targetRef": tree{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}, "type": "JSONPatch",
				"jsonPatches": []tree{{
					"type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": "default/eg/http",
					"operation": tree{
						"op": "add", "path": "hits_addend", "value": tree{"number": cost["number"]},
						"jsonPath": fmt.Sprintf("$..routes[?(@.route.cluster=='httproute/default/%v/rule/0')]."+
							"typed_per_filter_config['%s'].rate_limits[%d]", route, envoytest.FilterName, i),
					},
				}},
			},
		})
	}
	return patches
}
