package console

import (
	"context"
	"net/http"
	"slices"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// mostRejected is how many keys, and how many rules, the first page shows.
const mostRejected = 10

// overview is what the first page shows.
type overview struct {
	Status   *adminv1.StatusResponse
	Rejected *adminv1.TopResponse // in the last minute
	Charts   []chart
	Idle     bool // nothing was asked in the last hour
	Degraded bool
}

func (u *console) overview(ctx context.Context, _ *http.Request) (*overview, error) {
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	samples := u.History.Last()
	v := overview{Status: s, Charts: charts(samples), Idle: true}
	v.Degraded = slices.ContainsFunc(s.GetComponents(), func(c *adminv1.Component) bool { return c.GetHealth() != adminv1.Health_HEALTH_OK })
	v.Rejected, err = u.API.Top(ctx, &adminv1.TopRequest{Ranking: adminv1.Ranking_RANKING_REJECTED, PageSize: mostRejected})
	if err != nil {
		return nil, err
	}
	for i := range samples {
		v.Idle = v.Idle && samples[i] == Sample{}
	}
	return &v, nil
}

// lastChange shows what the last reload changed that changed anything.
func (u *console) lastChange(ctx context.Context, _ *http.Request) (*adminv1.RulesStatus, error) {
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	return s.GetRules(), err
}

// listed is a page of what the API lists, with how to get to the next.
type listed struct {
	Domain   string
	Controls *adminv1.ListControlsResponse
	Audit    *adminv1.AuditResponse
	Next     string
}

func (u *console) controls(ctx context.Context, r *http.Request) (*listed, error) {
	q := r.URL.Query()
	all, err := u.API.ListControls(ctx, &adminv1.ListControlsRequest{Domain: q.Get("domain"), PageToken: q.Get("after")})
	if err != nil {
		return &listed{Domain: q.Get("domain")}, err
	}
	return &listed{Domain: q.Get("domain"), Controls: all, Next: next(r, all.GetNextPageToken())}, nil
}

func (u *console) audit(ctx context.Context, r *http.Request) (*listed, error) {
	q := r.URL.Query()
	all, err := u.API.Audit(ctx, &adminv1.AuditRequest{Domain: q.Get("domain"), PageToken: q.Get("after")})
	if err != nil {
		return &listed{Domain: q.Get("domain")}, err
	}
	return &listed{Domain: q.Get("domain"), Audit: all, Next: next(r, all.GetNextPageToken())}, nil
}

// next returns the address of the page after that which r asks for; empty if there is none.
func next(r *http.Request, token string) string {
	if token == "" {
		return ""
	}
	q := r.URL.Query()
	q.Set("after", token)
	return r.URL.Path + "?" + q.Encode()
}
