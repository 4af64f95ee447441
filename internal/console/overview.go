package console

import (
	"context"
	"net/http"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// overview is what the first page shows.
type overview struct {
	Status *adminv1.StatusResponse
	Charts []chart
	Idle   bool // nothing was asked in the last hour
}

func (u *console) overview(ctx context.Context, _ *http.Request) (*overview, error) {
	s, err := u.API.Status(ctx, &adminv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	samples := u.History.Last()
	v := overview{Status: s, Charts: charts(samples), Idle: true}
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
		return nil, err
	}
	return &listed{Domain: q.Get("domain"), Controls: all, Next: next(r, all.GetNextPageToken())}, nil
}

func (u *console) audit(ctx context.Context, r *http.Request) (*listed, error) {
	q := r.URL.Query()
	all, err := u.API.Audit(ctx, &adminv1.AuditRequest{Domain: q.Get("domain"), PageToken: q.Get("after")})
	if err != nil {
		return nil, err
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
