package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// describe fills in the subject of q, even if q is invalid.
func describe(a *audit.Act, q proto.Message) {
	if d, ok := q.(interface{ GetDomain() string }); ok {
		a.Domain = cut(d.GetDomain())
	}
	if e, ok := q.(interface{ GetEntries() []*adminv1.Entry }); ok {
		for _, e := range entriesOf(e.GetEntries()[:min(len(e.GetEntries()), limiter.MaxEntries)]) {
			a.Entries = append(a.Entries, [2][]byte{cut(string(e.Key)), cut(string(e.Value))})
		}
	}
	a.Entries = append(a.Entries, tenantIn(q)...)
	if r, ok := q.(interface{ GetReason() string }); ok {
		a.Reason = valid(string(cut(r.GetReason())))
	}
	words := []string{strings.ToLower(a.Method)}
	switch q := q.(type) {
	case *adminv1.LimitRequest:
		if o := q.GetTo(); o != nil {
			c := override.Control{Kind: override.Limit}
			c.To = overrideOf(o)
			words = append(words, "to "+c.Number())
		}
		if q.GetLimitName() != "" {
			words = append(words, "of "+valid(string(cut(q.GetLimitName()))))
		}
	case *adminv1.LiftRequest:
		ids := q.GetIds()
		words = append(words, valid(string(cut(strings.Join(ids[:min(len(ids), maxLifted)], " ")))))
	case *adminv1.GrantRequest:
		words = append(words, strconv.FormatUint(q.GetHits(), 10), "hits")
	case *adminv1.ResetRequest:
		if q.GetForce() {
			words = append(words, "with force")
		}
	case *adminv1.SetTenantRequest:
		e, _ := entryOf(q.GetTenant()) // the method reports the error
		words = []string{"set tenant to", valid(string(cut(e.String())))}
	case *adminv1.UnsetTenantRequest:
		words[0] = "unset tenant"
	case *adminv1.ImportTenantsRequest:
		words = []string{"import", descriptors.CountText(len(q.GetTenants()), "tenant")}
	case *adminv1.ReloadRulesRequest:
		words[0] = "reload rules"
	case *adminv1.DrainRequest:
		if q.GetUndo() {
			words = append(words, "undone")
		}
	}
	if b, ok := q.(interface{ GetBelow() bool }); ok && b.GetBelow() {
		words = append(words, "and all below")
	}
	if f, ok := q.(interface{ GetFor() *durationpb.Duration }); ok && f.GetFor() != nil {
		words = append(words, "for", spanText(f.GetFor()))
	}
	if dry(q) {
		words = append(words, "(dry run)")
	}
	a.What = strings.Join(words, " ")
}

// spanText formats d, even if it does not fit into a [time.Duration].
func spanText(d *durationpb.Duration) string {
	if t := d.AsDuration(); t != math.MaxInt64 && t != math.MinInt64 {
		return t.String()
	}
	return fmt.Sprintf("%d seconds", d.GetSeconds())
}

// describeControl fills in the domain and the entries of a control.
func describeControl(a *audit.Act, c *override.Control) {
	a.Domain = []byte(c.Domain)
	for _, e := range c.Entries {
		a.Entries = append(a.Entries, [2][]byte{[]byte(e.Key), []byte(e.Value)})
	}
}

// maxCopied is the number of bytes of a request's text that describe copies. The audit log keeps fewer.
const maxCopied = 256

// cut returns the first maxCopied bytes of a text.
func cut(text string) []byte { return []byte(text[:min(len(text), maxCopied)]) }

// inForce describes a control without its values, which are data of end users.
func inForce(c *override.Control) string {
	if c == nil {
		return ""
	}
	text := c.String()
	if c.Kind == override.Limit {
		text += ", " + c.Number()
	}
	return fmt.Sprintf("%s until %s", text, c.Until.UTC().Format(time.RFC3339))
}

// counterState describes the state of a counter by its rule. It omits the counter's name, which may contain values of end users.
func counterState(c *limiter.Counter) string {
	if c.Decision.Penalty > 0 {
		return c.Rule.Path + ": a penalty runs"
	}
	if c.Overdraft > 0 {
		return fmt.Sprintf("%s: %d over the limit", c.Rule.Path, c.Overdraft)
	}
	return fmt.Sprintf("%s: %d left", c.Rule.Path, c.Decision.Left)
}

// Audit lists changes.
func (s methods) Audit(ctx context.Context, q *adminv1.AuditRequest) (*adminv1.AuditResponse, error) {
	size, err := pageSize(q.GetPageSize(), usualControls, maxControls)
	if err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	all, complete := s.config.Acts.Acts(ctx)
	all = slices.DeleteFunc(all, func(a audit.Act) bool { return !shows(who, string(a.Domain), q.GetDomain()) })
	if after := q.GetPageToken(); after != "" {
		i := slices.IndexFunc(all, func(a audit.Act) bool { return a.ID == after })
		if i < 0 {
			return nil, invalidf("page_token is invalid or has expired: start again without it")
		}
		all = all[i+1:]
	}
	m := &adminv1.AuditResponse{IsPartial: !complete, Alone: s.controls.Unshared()}
	if q.GetPageToken() == "" && !who.Limited() {
		m.Failed = failedCalls(s.config.Acts.Failures())
	}
	for i := range all[:min(size, len(all))] {
		m.Entries = append(m.Entries, auditEntry(&all[i], who))
	}
	if len(all) > size {
		m.NextPageToken = all[size-1].ID
	}
	return m, nil
}

func auditEntry(a *audit.Act, who *access.Who) *adminv1.AuditEntry {
	m := &adminv1.AuditEntry{
		Time: timestamppb.New(a.Time), Method: a.Method, RequestId: a.RequestID, By: a.By, From: a.From, Domain: valid(string(a.Domain)),
		What: a.What, Reason: a.Reason, Before: a.Before, After: a.After, Failed: a.Failed,
	}
	for _, e := range a.Entries {
		m.Entries = append(m.Entries, entryMessage(who, string(e[0]), string(e[1])))
	}
	if !who.Masked {
		m.Failure = valid(a.Why)
	}
	return m
}

func failedCalls(all []audit.Failed) (calls []*adminv1.FailedCalls) {
	for _, r := range all {
		calls = append(calls, &adminv1.FailedCalls{
			By: r.By, From: r.From, Method: r.Method, Code: r.Code, Count: r.Count, First: timestamppb.New(r.First), Last: timestamppb.New(r.Last),
		})
	}
	return calls
}
