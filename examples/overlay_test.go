package examples_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// overlayOfGateway returns the files of the ConfigMap that envoy-gateway.yaml mounts.
func overlayOfGateway(t *testing.T) files {
	t.Helper()
	data, err := envoytest.Data(read(t, "envoy-gateway/overlay.yaml"))
	testkit.Check(t, err)
	return data
}

// TestGatewayOverlay lays the overlay over the rules that Envoy Gateway makes of the policy: every part of it meets one.
func TestGatewayOverlay(t *testing.T) {
	t.Parallel()
	o := descriptors.Options{}
	sent := source(t, "envoy-gateway/sent/shop.yaml")
	checkSent(t, loadSent(t, o, sent))
	var over []descriptors.Source
	for name, text := range overlayOfGateway(t) {
		over = append(over, descriptors.Source{Name: name, Data: []byte(text)})
	}
	got := map[string]string{}
	for r := range loadSent(t, overlay.With(o, over), sent).Rules() {
		got[r.Path[strings.LastIndex(r.Path, ".")+1:]] = r.String()
	}
	want := map[string]string{
		"rule-0-match-0":                  "100 per minute, token_bucket, burst 20",
		"remote_address":                  "1000 per hour, sliding_window, penalty 15m once exceeded, shadow mode",
		"rule-2-match-1":                  "50000 per day, calendar, timezone Europe/Berlin, on failure deny",
		"rule-0-match--1_rule-0-match--1": "50 per second, on failure local",
		"rule-0-match-1":                  "1000000 per month, reserve 2000 unless the request says otherwise, kept if not settled within 15m, each value of rule-0-match-1 is a request",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// loadSent loads the rules with the warning that Envoy Gateway's shadow mode causes, and with no other.
func loadSent(t *testing.T, o descriptors.Options, sent descriptors.Source) *descriptors.Set {
	t.Helper()
	set, problems, err := descriptors.Load([]descriptors.Source{sent}, o)
	testkit.Check(t, err)
	for _, p := range problems {
		if !strings.HasPrefix(p.Text, "shadow_mode has no effect") {
			t.Error(p)
		}
	}
	return set
}

// TestGatewayOverlayServed starts the server as with-overlay.yaml has it.
func TestGatewayOverlayServed(t *testing.T) {
	t.Parallel()
	s := startGatewayOf(t, "with-overlay.yaml", nil)
	_, rules, err := testkit.Fetch(t.Context(), http.MethodGet, "http://"+s.At["DEBUG"]+"/rlconfig", "")
	if err != nil || strings.Count(rules, ", overlay: ") != 5 {
		t.Errorf("%v, %s", err, rules)
	}
}

// checkSent checks that the rules have the limits of the policy, in its order.
func checkSent(t *testing.T, set *descriptors.Set) {
	t.Helper()
	var policy struct {
		Spec struct {
			RateLimit struct {
				Global struct {
					Rules []struct {
						Limit struct {
							Requests int
							Unit     string
						}
						ShadowMode bool `yaml:"shadowMode"`
					}
				}
			} `yaml:"rateLimit"`
		}
	}
	testkit.Check(t, yaml.Unmarshal([]byte(read(t, "envoy-gateway/policy.yaml")), &policy))
	var want, got []string
	for _, r := range policy.Spec.RateLimit.Global.Rules {
		want = append(want, fmt.Sprintf("%d %s %t", r.Limit.Requests, strings.ToUpper(r.Limit.Unit), r.ShadowMode))
	}
	for r := range set.Rules() {
		l := r.RateLimits.At(0)
		got = append(got, fmt.Sprintf("%d %v %t", l.RequestsPerUnit, l.Unit, r.Shadow))
	}
	if !slices.Equal(want, got[:len(want)]) {
		t.Errorf("the rules have the limits %q, the policy %q", got, want)
	}
}
