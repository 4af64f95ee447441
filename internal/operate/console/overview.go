package console

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// maxRejected is the maximum number of keys and of rules on the overview.
const maxRejected = 10

// overview is the first page.
type overview struct {
	Status   *adminv1.StatusResponse
	Self     string // this replica's name; empty if there are no others
	Differ   bool   // replicas have different rules
	Degraded bool
	Failing  []*adminv1.Component // that do not work now, or failed before
	Backend  string
	Fault    string               // the backend's problem, or empty
	Rejected *adminv1.TopResponse // in the last minute
	Domain   string               // filter of Rejected; empty for all
	URL      string
	Chart    *chart
	Idle     bool // no requests in the last hour
}

func (u *console) overview(ctx context.Context, r *http.Request) (*overview, error) {
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	samples := u.History.Last()
	idle := !slices.ContainsFunc(samples, func(s Sample) bool { return s != Sample{} })
	v := overview{Status: s, Chart: draw(samples), Idle: idle, Domain: r.FormValue("domain"), URL: r.URL.RequestURI()}
	v.Backend = strings.TrimSuffix(strings.Fields(s.GetStore().GetText() + " -")[0], ":")
	for _, n := range s.GetStore().GetNodes() {
		if n.GetBreaker() != adminv1.Breaker_BREAKER_CLOSED {
			v.Fault = "breaker " + lower(n.GetBreaker().String(), "BREAKER_")
		}
	}
	for _, c := range s.GetComponents() {
		fails := c.GetHealth() != adminv1.Health_HEALTH_OK
		if v.Degraded = v.Degraded || fails; fails && c.GetName() == v.Backend {
			v.Fault = lower(c.GetHealth().String(), "HEALTH_")
		}
		if fails || c.GetLastError() != "" {
			v.Failing = append(v.Failing, c)
		}
	}
	for _, r := range s.GetReplicas() {
		v.Differ = v.Differ || r.GetRulesVersion() != s.GetRules().GetVersion()
		if r.GetIsSelf() && len(s.GetReplicas()) > 1 {
			v.Self = r.GetName()
		}
	}
	v.Rejected, err = u.API.Top(ctx, &adminv1.TopRequest{Ranking: adminv1.Ranking_RANKING_REJECTED, Domain: v.Domain, PageSize: maxRejected})
	return &v, err
}

// maxDomains is the maximum number of domains in a choice. With more, users type the name.
const maxDomains = 200

// domains caches the domains of one version of the rules.
type domains struct {
	mu      sync.Mutex
	version string
	names   []string
}

// domains returns the domains that the user can choose from; nil if they are unknown or too many.
func (u *console) domains(ctx context.Context, r *http.Request) []string {
	if partly(r) { // a part of a page has no choice of domains
		return nil
	}
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	if err != nil || len(s.GetDomains()) > 0 {
		return s.GetDomains()
	}
	u.domainCache.mu.Lock()
	defer u.domainCache.mu.Unlock()
	if version := s.GetRules().GetVersion(); u.domainCache.version != version {
		seen := map[string]bool{}
		for q := new(adminv1.ListRulesRequest); len(seen) <= maxDomains; {
			m, err := u.API.ListRules(ctx, q)
			if err != nil {
				return nil
			}
			for _, r := range m.GetStates() {
				seen[r.GetDomain()] = true
			}
			if q.PageToken = m.GetNextPageToken(); q.PageToken == "" {
				break
			}
		}
		u.domainCache.version, u.domainCache.names = version, slices.Sorted(maps.Keys(seen))
	}
	if len(u.domainCache.names) > maxDomains {
		return nil
	}
	return u.domainCache.names
}

// lastChange shows the last reload that changed rules.
func (u *console) lastChange(ctx context.Context, _ *http.Request) (*adminv1.RulesStatus, error) {
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	return s.GetRules(), err
}

// listed is a page of a list of the API, with the address of the next page.
type listed struct {
	Domain   string
	Controls *adminv1.ListControlsResponse
	Audit    *adminv1.AuditResponse
	Next     string
}

func (u *console) controls(ctx context.Context, r *http.Request) (*listed, error) {
	q := r.URL.Query()
	all, err := u.API.ListControls(ctx, &adminv1.ListControlsRequest{Domain: q.Get("domain"), PageToken: q.Get("after")})
	return &listed{Domain: q.Get("domain"), Controls: all, Next: next(r, all.GetNextPageToken())}, err
}

func (u *console) audit(ctx context.Context, r *http.Request) (*listed, error) {
	q := r.URL.Query()
	all, err := u.API.Audit(ctx, &adminv1.AuditRequest{Domain: q.Get("domain"), PageToken: q.Get("after")})
	return &listed{Domain: q.Get("domain"), Audit: all, Next: next(r, all.GetNextPageToken())}, err
}

// next returns the address of the page after that of r, or "".
func next(r *http.Request, token string) string {
	if token == "" {
		return ""
	}
	q := r.URL.Query()
	q.Set("after", token)
	return r.URL.Path + "?" + q.Encode()
}
