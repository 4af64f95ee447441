package console_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/operate/console"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// api is an admin API with three replicas, of which one has other rules, and with rules in two domains.
type api struct {
	adminv1.AdminServiceClient

	tops []*adminv1.TopRequest
}

func (a *api) Status(context.Context, *adminv1.StatusRequest, ...grpc.CallOption) (*adminv1.StatusResponse, error) {
	return &adminv1.StatusResponse{
		Healthy: true, Controls: 4,
		Rules: &adminv1.RulesStatus{Version: "v1", Rules: 12, Loaded: timestamppb.New(time.Now().Add(-2 * time.Hour))},
		Store: &adminv1.StoreStatus{Text: "redis (single): counters are shared", Nodes: []*adminv1.StoreNode{{Name: "127.0.0.1:6379"}}},
		Components: []*adminv1.Component{
			{Name: "rules", Health: adminv1.Health_HEALTH_OK}, {Name: "redis", Health: adminv1.Health_HEALTH_DEGRADED, LastError: "connection refused"},
		},
		Reach:    &adminv1.Reach{Replicas: 3},
		Replicas: []*adminv1.Replica{{Name: "a", RulesVersion: "v1", IsSelf: true}, {Name: "b", RulesVersion: "v1"}, {Name: "c", RulesVersion: "v2"}},
	}, nil
}

func (a *api) ListRules(context.Context, *adminv1.ListRulesRequest, ...grpc.CallOption) (*adminv1.ListRulesResponse, error) {
	return &adminv1.ListRulesResponse{
		Rules: []*adminv1.Rule{{Path: "shop.user", File: "/etc/rules/shop.yaml", Line: 3}, {Path: "search.ip"}}, Total: 2,
		States: []*adminv1.RuleState{
			{Domain: "shop", Levels: []*adminv1.EntryFilter{{Key: "user"}}},
			{Domain: "search", Levels: []*adminv1.EntryFilter{{Key: "ip"}}},
		},
	}, nil
}

func (a *api) Top(_ context.Context, q *adminv1.TopRequest, _ ...grpc.CallOption) (*adminv1.TopResponse, error) {
	a.tops = append(a.tops, q)
	entry := func(user string) *adminv1.TopEntry {
		return &adminv1.TopEntry{Domain: "shop", Rule: "shop.user", Entries: []*adminv1.Entry{{Key: "user", Value: user}}, Rejected: 30}
	}
	blocked := entry("eve")
	blocked.Control = "19e9"
	return &adminv1.TopResponse{Entries: []*adminv1.TopEntry{entry("ann"), blocked}, Rejected: 120}, nil
}

// everyone may change something, or not.
type everyone bool

func (everyone) Guarded() bool                                          { return true }
func (everyone) Reachable(*http.Request) error                          { return nil }
func (everyone) Login(*http.Request, string) (string, time.Time, error) { return "", time.Time{}, nil }

func (e everyone) Resume(r *http.Request, _ string) (context.Context, bool, bool) {
	return r.Context(), bool(e), true
}

// get returns a page of a console whose user may change something, or not; with part it is what a script asks for.
func (a *api) get(t *testing.T, change, part bool, path string) string {
	t.Helper()
	h, err := console.New(console.Config{API: a, Sessions: everyone(change), History: new(console.History), Command: "kubectl exec pod-1 -- /bin/ratelimitd"})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	if part {
		r.Header.Set("HX-Request", "true")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, w.Code, w.Body)
	}
	return strings.Join(strings.Fields(w.Body.String()), " ")
}

func wants(t *testing.T, page string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if without, not := strings.CutPrefix(want, "!"); strings.Contains(page, without) == not {
			t.Errorf("want %q (%t) in\n%s", without, !not, page)
		}
	}
}

// TestOverview: the status line, the origin of the numbers, and the actions for each key. Who may not act gets the command instead.
func TestOverview(t *testing.T) {
	a := new(api)
	wants(t, a.get(t, true, false, "/ui/?domain=shop"),
		`<dt>Health</dt><dd><span class="pill warn">degraded`, `<dt>Replicas</dt><dd>3 <span class="pill warn">rules differ`, `<dt>Backend</dt><dd>redis <span class="pill bad">degraded`,
		">4 active</a>", "loaded 2 h ago", "replica only: a, 1 of 3", "<option>search</option><option selected>shop</option>", "25 %",
		`name="do" value="allow" aria-label="Allow user=ann`, `name="do" value="block"`, `name="control" value="19e9"><button id="lift-1"`,
		"<h2>Components</h2>", "connection refused", "!Copy")
	if q := a.tops[0]; q.GetDomain() != "shop" {
		t.Errorf("the keys of %q are shown, want those of shop", q.GetDomain())
	}
	wants(t, a.get(t, false, false, "/ui/"), "<code>kubectl exec pod-1 -- /bin/ratelimitd allow shop user=ann --for 1h --reason WHY</code>", "!/ui/act")
	wants(t, a.get(t, true, true, "/ui/"), "!<option")
}

// TestSearch: rules are searched at each keystroke, and keys once the form is sent.
func TestSearch(t *testing.T) {
	for _, part := range []bool{true, false} {
		a := new(api)
		page := a.get(t, true, part, "/ui/rules?"+url.Values{"q": {"user=ann"}}.Encode())
		wants(t, page, ">Peek at user=ann<", `title="/etc/rules/shop.yaml:3">shop.yaml:3<`)
		if got := len(a.tops); (got == 0) != part {
			t.Errorf("a part of the page (%t) asks %d times for keys", part, got)
		}
	}
}
