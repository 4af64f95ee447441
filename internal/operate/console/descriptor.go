package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// historyOf is the number of audit entries searched for a descriptor's.
const historyOf = 500

// descriptorPage is a descriptor, in the user's spelling, with its state.
type descriptorPage struct {
	Domain    string
	Lines     string
	Entries   []*adminv1.Entry
	Requested bool
	Explain   *adminv1.ExplainResponse
	Is        *adminv1.Explanation
	Limit     *adminv1.Limit // the strictest limit, or nil
	Used      int            // percentage of Limit
	Fill      *plot          // nil without a limit
	History   []*adminv1.AuditEntry
	Partial   bool
	Masked    bool
	Form      url.Values // the submitted form for a change
}

// typed parses a descriptor in a query or a form.
func typed(r *http.Request) descriptorPage {
	p := descriptorPage{Domain: strings.TrimSpace(r.FormValue("domain")), Entries: parseEntries(r.Form["e"])}
	p.Lines, p.Masked = strings.Join(entryTexts(p.Entries), "\n"), masked(p.Entries)
	p.Requested = p.Domain != "" && len(p.Entries) > 0
	return p
}

// Block returns the ID of the block that applies to the descriptor, or "".
func (p descriptorPage) Block() string {
	if c := p.Is.GetControls(); len(c) > 0 && c[0].GetKind() == adminv1.ControlKind_CONTROL_KIND_BLOCK {
		return c[0].GetId()
	}
	return ""
}

// PlaygroundURL returns the address of the playground for the descriptor.
func (p descriptorPage) PlaygroundURL() string {
	return descriptorURL(Root+"playground", p.Domain, p.Entries)
}

// explain requests an explanation of a decision on the descriptor.
func (u *console) explain(ctx context.Context, p *descriptorPage, hits uint32) (err error) {
	p.Explain, err = u.API.Explain(ctx, &adminv1.ExplainRequest{Domain: p.Domain, HitsAddend: hits, Descriptors: []*adminv1.Descriptor{{Entries: p.Entries}}})
	if err != nil {
		return err
	}
	p.Is = p.Explain.GetDescriptors()[0]
	if c := p.Is.GetCounter(); c != nil {
		p.Limit = c.GetLimits()[c.GetStrictest()]
	}
	return nil
}

func (u *console) descriptor(ctx context.Context, r *http.Request) (*descriptorPage, error) {
	p := typed(r)
	if !p.Requested {
		return &p, nil
	}
	if err := u.explain(ctx, &p, 0); err != nil {
		return &p, err
	}
	if p.Limit != nil {
		c := p.Is.GetCounter()
		if most := capacity(p.Limit); most > 0 {
			p.Used = int(100 - 100*min(c.GetLeft(), most)/most)
		}
		p.Fill = refills(p.Limit, c, time.Now())
	}
	a, err := u.API.Audit(ctx, &adminv1.AuditRequest{Domain: p.Domain, PageSize: historyOf})
	if err != nil {
		return &p, err
	}
	p.Partial = a.GetIsPartial()
	for _, e := range a.GetEntries() {
		if slices.EqualFunc(e.GetEntries(), p.Entries, func(a, b *adminv1.Entry) bool { return entryText(a) == entryText(b) }) {
			p.History = append(p.History, e)
		}
	}
	return &p, nil
}

// capacity returns the remaining hits of an unused counter.
func capacity(l *adminv1.Limit) uint64 {
	if b := l.GetBurst(); b > 0 {
		return b
	}
	return l.Number()
}
