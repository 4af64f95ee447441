package admin

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// shows reports whether w may see domain and a list of domain asked includes it; an asked of "" includes all.
func shows(w *access.Who, domain, asked string) bool {
	return w.Sees(domain) && (asked == "" || asked == domain)
}

// about returns an error if the token of who does not cover q. For a caller limited to domains, methods that list entries show
// only those domains. All other methods must name one of them. Unknown methods concern the whole server and are denied.
func (s *Service) about(who *access.Who, q proto.Message) error {
	if !who.Limited() {
		return nil
	}
	about, named := q.(interface{ GetDomain() string })
	counter := false // requires rules in the domain
	switch q.(type) {
	case *adminv1.ListRulesRequest, *adminv1.StatusRequest, *adminv1.LiftRequest:
		return nil
	case *adminv1.ListControlsRequest, *adminv1.AuditRequest, *adminv1.TopRequest, *adminv1.WatchRequest:
		if about.GetDomain() == "" {
			return nil
		}
	case *adminv1.ExplainRequest, *adminv1.PeekRequest, *adminv1.ResetRequest, *adminv1.GrantRequest, *adminv1.LimitRequest:
		counter = true
	}
	switch {
	case !named:
		s.policy.Guard.Denied()
		return status.Errorf(codes.PermissionDenied, "your token is limited to %s, but this concerns the whole server: use a token without domains", who.DomainText())
	case !who.Sees(about.GetDomain()):
		s.policy.Guard.Denied()
		return status.Errorf(codes.PermissionDenied, "your token is limited to %s and does not cover %q", who.DomainText(), valid(about.GetDomain()))
	case counter && s.limiter.Rules() != nil && !s.limiter.HasDomain(about.GetDomain()):
		return status.Error(codes.NotFound, noRulesOf(about.GetDomain()))
	}
	return nil
}

// noRulesOf returns the message for a domain without rules, for callers that may not list domains.
func noRulesOf(domain string) string {
	return fmt.Sprintf("the domain %q has no rules", valid(domain))
}

// liftable returns an error if w may not see one of the controls. It is the error of an unknown control.
func liftable(w *access.Who, all []*override.Control) error {
	i := slices.IndexFunc(all, func(c *override.Control) bool { return !w.Sees(c.Domain) })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("%w: %q", controls.ErrUnknown, all[i].ID)
}

// narrowed removes from a status what w may not see: rules of other domains, and totals of all domains.
func narrowed(w *access.Who, a *adminv1.StatusResponse) {
	if !w.Limited() {
		return
	}
	a.Domains, a.NearCache, a.Leases, a.Load, a.Store.MemoryKeys = w.Domains, nil, nil, nil, 0
	const rules = "rules"
	for i, why := range a.GetNotReady() {
		if strings.HasPrefix(why, rules+":") {
			a.NotReady[i] = rules
		}
	}
	for _, c := range a.GetComponents() {
		if c.GetName() == rules {
			c.LastError = ""
		}
	}
	if a.GetRules() != nil {
		a.Rules.Missing = ""
	}
}
