package e2e

import (
	"errors"
	"net/http"
	"os"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"gopkg.in/yaml.v3"
)

// object has the fields that the case needs of the objects in examples/istio.
type object struct {
	Data map[string]string
	Spec struct {
		ConfigPatches []struct {
			ApplyTo string `yaml:"applyTo"`
			Patch   struct{ Value map[string]any }
		} `yaml:"configPatches"`
	}
}

// istio puts the patches of the example into a gateway, as Istio would, with a cluster of the name that Istio gives it.
func istio(w *world) {
	rules, patches := "", map[string]map[string]any{}
	for _, name := range []string{"envoyfilter.yaml", "ratelimitd.yaml"} {
		text, err := os.ReadFile("../../examples/istio/" + name)
		testkit.Check(w, err)
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var o object
			testkit.Check(w, yaml.Unmarshal([]byte(document), &o))
			rules += o.Data["config.yaml"]
			for _, p := range o.Spec.ConfigPatches {
				patches[p.ApplyTo] = p.Patch.Value
			}
		}
	}
	s := w.serve(rules, "BACKEND_TYPE=memory")
	up := w.upstream(hello)
	p := w.front(setup{example: "envoy", timeout: patient, change: func(c *config) {
		var filter hcmv3.HttpFilter
		patched, host := new(routev3.VirtualHost), c.manager.GetRouteConfig().GetVirtualHosts()[0]
		value := patches["VIRTUAL_HOST"]
		value["name"], value["domains"] = host.GetName(), host.GetDomains()
		f := new(ratelimitv3.RateLimit)
		if err := errors.Join(envoytest.DecodeTree(patches["HTTP_FILTER"], &filter), envoytest.DecodeTree(value, patched), filter.GetTypedConfig().UnmarshalTo(f)); err != nil {
			w.Fatal(err)
		}
		for _, r := range host.GetRoutes() {
			r.TypedPerFilterConfig = nil // Istio makes none
		}
		patched.Routes = host.GetRoutes()
		c.manager.GetRouteConfig().VirtualHosts[0] = patched
		f.Timeout = c.filter.GetTimeout()
		c.filter = f
		c.service.Name, c.service.HealthChecks = f.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName(), nil // Istio makes none
	}}, up, s.Addr())
	y := new(tally)
	for range 6 {
		y.add("", w.ask(p, "/productpage", ""))
	}
	e := p.counts()
	w.got(y.passed >= 1 && y.passed <= 2 && y.rejected == 6-y.passed && e.over == y.rejected && e.failed == 0,
		"%d of 6 for /productpage pass, where 1 a minute may; Envoy counts over_limit %d", y.passed, e.over)
	a := w.ask(p, "/other", "")
	w.got(a.status == http.StatusOK && strings.HasPrefix(a.header.Get("x-ratelimit-limit"), "100, 100;w=60"), "/other: %s", told(a))
}
