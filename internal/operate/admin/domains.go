package admin

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Limited reports whether w may see and change what belongs to some domains alone.
func (w *Who) Limited() bool { return w.Domains != nil }

// narrow reports whether w may only look, or is limited to domains: of what all share there is always some for others.
func (w *Who) narrow() bool { return !w.Full || w.Limited() }

// Sees reports whether w may see what belongs to a domain. What belongs to none, or to the whole process, is for those who are not
// limited.
func (w *Who) Sees(domain string) bool {
	return w.Domains == nil || slices.Contains(w.Domains, domain)
}

// shows reports whether a list shows w what belongs to a domain, where another one, or no one in particular, may be asked for.
func (w *Who) shows(domain, asked string) bool {
	return w.Sees(domain) && (asked == "" || asked == domain)
}

// within returns an error for a call that is not for w, who is limited to domains. Methods that list show w only what is in these; all
// others must be about one of them. A method that is not known here is about the whole process, and not for callers who are limited.
func (w *Who) within(q proto.Message) error {
	if !w.Limited() {
		return nil
	}
	about, named := q.(interface{ GetDomain() string })
	switch q.(type) {
	case *adminv1.ListRulesRequest, *adminv1.StatusRequest, *adminv1.LiftRequest:
		return nil
	case *adminv1.ListControlsRequest, *adminv1.AuditRequest, *adminv1.TopRequest, *adminv1.WatchRequest:
		if about.GetDomain() == "" {
			return nil
		}
	}
	switch {
	case !named:
		return status.Errorf(codes.PermissionDenied, "your token is limited to %s, but this concerns the whole server: use a token without domains", w.domainText())
	case !w.Sees(about.GetDomain()):
		return status.Errorf(codes.PermissionDenied, "your token is limited to %s and does not cover %q", w.domainText(), valid(about.GetDomain()))
	}
	return nil
}

// domainText names the domains of w, for messages.
func (w *Who) domainText() string {
	text := strings.Join(w.Domains[:min(len(w.Domains), 10)], ", ")
	if len(w.Domains) > 10 {
		text += ", …"
	}
	if len(w.Domains) == 1 {
		return "the domain " + text
	}
	return "the domains " + text
}

// about is [Who.within], and counts what it denies.
func (s *Service) about(who *Who, q proto.Message) error {
	if err := who.within(q); err != nil {
		s.access.Guard.denied()
		return err
	}
	switch q := q.(type) {
	case *adminv1.ExplainRequest, *adminv1.PeekRequest, *adminv1.ResetRequest, *adminv1.GrantRequest, *adminv1.LimitRequest:
		if d := q.(interface{ GetDomain() string }).GetDomain(); who.Limited() && s.limiter.Rules() != nil && !s.limiter.HasDomain(d) {
			return status.Error(codes.NotFound, noRulesOf(d))
		}
	}
	return nil
}

// noRulesOf says that a domain has no rules, to those who may not know which domains have some.
func noRulesOf(domain string) string {
	return fmt.Sprintf("the domain %q has no rules", valid(domain))
}

// liftable returns an error if w may not know of one of the controls, as if it was not there.
func (w *Who) liftable(all []*override.Control) error {
	for _, c := range all {
		if !w.Sees(c.Domain) {
			return fmt.Errorf("%w: %q", controls.ErrUnknown, c.ID)
		}
	}
	return nil
}

// status takes out of an answer what is about rules in other domains, or of the traffic of all of them together.
func (w *Who) status(a *adminv1.StatusResponse) {
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

// errDomains says how domains are written behind a name in a file of tokens.
var errDomains = errors.New("the domains of a token follow its name, separated by commas without spaces, such as ann[domains=shop,search]: TOKEN")

// domains returns those of a list in a file of tokens; nil if it is empty.
func domains(list string) (all []string, err error) {
	if list == "" {
		return nil, nil
	}
	all = strings.Split(list, ",")
	for i, d := range all {
		if d == "" || slices.Contains(all[:i], d) {
			return nil, errDomains
		}
	}
	return all, nil
}
