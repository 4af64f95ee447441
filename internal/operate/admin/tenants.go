package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of lists of tenants.
const (
	maxTenants      = 1000 // per page
	maxRulesWithout = 100
)

// tenantNamed is a message with the name of a tenant.
type tenantNamed interface {
	GetTenant() string
	GetRawTenant() []byte
}

// nameOf returns the name of the tenant in m.
func nameOf(m tenantNamed) string { return cmp.Or(string(m.GetRawTenant()), m.GetTenant()) }

// tenantIn returns the tenant of a request as an entry for the audit log, or nil.
func tenantIn(q any) [][2][]byte {
	name := ""
	switch q := q.(type) {
	case *adminv1.SetTenantRequest:
		name = nameOf(q.GetTenant())
	case tenantNamed:
		name = nameOf(q)
	}
	if name == "" {
		return nil
	}
	return [][2][]byte{{[]byte("tenant"), cut(name)}}
}

// entryOf converts the plan, number, and end of m.
func entryOf(m *adminv1.Tenant) (plans.Entry, error) {
	e := plans.Entry{Plan: m.GetPlan()}
	if m.Contradicts() {
		return e, errContradiction
	}
	e.Requests, e.Numbered = m.Number()
	if u := m.GetUntil(); u != nil {
		if e.Until = u.AsTime().Truncate(time.Second); u.CheckValid() != nil || e.Until.Unix() <= 0 {
			return e, invalidf("until is not a valid time: use one after 1970")
		}
	}
	return e, nil
}

// GetTenant returns the plan of a tenant.
func (s methods) GetTenant(ctx context.Context, q *adminv1.GetTenantRequest) (*adminv1.GetTenantResponse, error) {
	name := nameOf(q)
	if err := tenants.ValidateName(name); err != nil {
		return nil, invalidf("%v", err)
	}
	said := s.config.Tenants.Entries([]byte(name))
	if len(said) == 0 {
		return nil, notFoundf("this tenant has no entry, so its plan is %s", descriptors.DefaultPlan)
	}
	a := &adminv1.GetTenantResponse{}
	for i := range said {
		m := tenantMessage(name, said[i].Source, &said[i].Entry, whoOf(ctx))
		a.Said = append(a.Said, m)
		if a.Tenant == nil && !said[i].Entry.Over(time.Now()) {
			a.Tenant, a.Notes = m, s.numberNotes(&said[i].Entry)
		}
	}
	if set := s.limiter.Rules(); set != nil && a.Tenant != nil {
		for r := range set.Rules() {
			if r.Plan == descriptors.DefaultPlan && len(a.RulesWithout) < maxRulesWithout &&
				!slices.ContainsFunc(r.Plans(), func(p *descriptors.Rule) bool { return p.Plan == a.Tenant.GetPlan() }) {
				a.RulesWithout = append(a.RulesWithout, valid(r.Path))
			}
		}
	}
	return a, nil
}

// numberNotes returns a note if the number of e has no effect.
func (s *Service) numberNotes(e *plans.Entry) []string {
	if err := s.limiter.Rules().CheckNumber(e.Plan, e.Requests); err != nil && e.Numbered {
		return []string{valid(err.Error())}
	}
	return nil
}

// tenantChange validates m and converts it. Its plan must exist.
func (s *Service) tenantChange(m *adminv1.Tenant) (tenants.Change, error) {
	c := tenants.Change{Tenant: nameOf(m)}
	e, err := entryOf(m)
	if err != nil {
		return c, err
	}
	if err := tenants.ValidateName(c.Tenant); err != nil {
		return c, invalidf("%v", err)
	}
	if err := tenants.Validate(&e); err != nil {
		return c, invalidf("%v", err)
	}
	set := s.limiter.Rules()
	if set == nil {
		return c, limiter.ErrNoRules
	}
	if names := set.PlanNames(); !slices.Contains(names, e.Plan) {
		return c, invalidf("unknown plan '%s': use one that a rule defines: %s", valid(e.Plan), cmp.Or(strings.Join(names, ", "), "there is none"))
	}
	c.Entry = &e
	return c, nil
}

// SetTenant assigns a plan to a tenant.
func (s methods) SetTenant(ctx context.Context, q *adminv1.SetTenantRequest) (*adminv1.SetTenantResponse, error) {
	c, err := s.tenantChange(q.GetTenant())
	if err != nil {
		return nil, err
	}
	before, err := s.config.Tenants.Put(ctx, []tenants.Change{c}, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	a := &adminv1.SetTenantResponse{Tenant: tenantMessage(c.Tenant, plans.Store, c.Entry, who), Notes: s.numberNotes(c.Entry)}
	act := actOf(ctx)
	act.After = c.Entry.String()
	if was := before[0]; was != nil {
		a.Before, act.Before = tenantMessage(c.Tenant, plans.Store, was, who), was.String()
	}
	return a, nil
}

// UnsetTenant removes a tenant from the table.
func (s methods) UnsetTenant(ctx context.Context, q *adminv1.UnsetTenantRequest) (*adminv1.UnsetTenantResponse, error) {
	name := nameOf(q)
	if err := tenants.ValidateName(name); err != nil {
		return nil, invalidf("%v", err)
	}
	before, err := s.config.Tenants.Put(ctx, []tenants.Change{{Tenant: name}}, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	if before[0] == nil {
		return nil, notFoundf("this tenant is not in the table in Redis")
	}
	a := &adminv1.UnsetTenantResponse{Before: tenantMessage(name, plans.Store, before[0], whoOf(ctx))}
	actOf(ctx).Before = before[0].String()
	for _, said := range s.config.Tenants.Entries([]byte(name)) {
		if said.Source == plans.File && !said.Entry.Over(time.Now()) {
			a.Now = tenantMessage(name, plans.File, &said.Entry, whoOf(ctx))
		}
	}
	return a, nil
}

// ListTenants lists tenants with their plans.
func (s methods) ListTenants(ctx context.Context, q *adminv1.ListTenantsRequest) (*adminv1.ListTenantsResponse, error) {
	size, err := pageSize(q.GetPageSize(), maxTenants, maxTenants)
	if err != nil {
		return nil, err
	}
	t, who := s.config.Tenants, whoOf(ctx)
	page, next, err := t.List(q.GetPageToken(), size, func(l *tenants.Listed) bool {
		source := q.GetSource()
		return (q.GetPlan() == "" || l.Entry.Plan == q.GetPlan()) && (source == 0 || source == adminv1.TenantSource(l.Source))
	})
	if err != nil {
		return nil, err
	}
	a := &adminv1.ListTenantsResponse{NextPageToken: next, InStore: int64(t.Len(plans.Store)), InFile: int64(t.Len(plans.File))}
	for i := range page {
		a.Tenants = append(a.Tenants, tenantMessage(page[i].Tenant, page[i].Source, &page[i].Entry, who))
	}
	if status := t.Status(); status != nil && status.Err != nil {
		err := status.Err
		if wrong, ok := errors.AsType[*tenants.ProblemsError](err); ok && !who.Full { // may not see contents of files
			err = wrong.Bared()
		}
		a.Invalid = valid(err.Error())
	}
	return a, nil
}

// ImportTenants assigns plans to many tenants.
func (s methods) ImportTenants(ctx context.Context, q *adminv1.ImportTenantsRequest) (*adminv1.ImportTenantsResponse, error) {
	if n := len(q.GetTenants()); n < 1 || n > tenants.MaxAtOnce {
		return nil, invalidf("the request has %d tenants: want 1 to %d", n, tenants.MaxAtOnce)
	}
	changes := make([]tenants.Change, len(q.GetTenants()))
	seen := make(map[string]bool, len(changes))
	for i, m := range q.GetTenants() {
		var err error
		if changes[i], err = s.tenantChange(m); err != nil {
			return nil, fmt.Errorf("tenant %d of %d: %w", i+1, len(changes), err)
		}
		if name := changes[i].Tenant; seen[name] {
			return nil, invalidf("tenant %d of %d is listed twice: list each tenant once", i+1, len(changes))
		}
		seen[changes[i].Tenant] = true
	}
	before, err := s.config.Tenants.Put(ctx, changes, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	a := &adminv1.ImportTenantsResponse{}
	for i, was := range before {
		a.Notes = append(a.Notes, s.numberNotes(changes[i].Entry)...)
		switch {
		case was == nil:
			a.Added++
		case was.String() == changes[i].Entry.String():
			a.Unchanged++
		default:
			a.Changed++
		}
	}
	slices.Sort(a.Notes)
	a.Notes = slices.Compact(a.Notes)
	actOf(ctx).After = fmt.Sprintf("%d added, %d changed, %d unchanged", a.GetAdded(), a.GetChanged(), a.GetUnchanged())
	return a, nil
}

func tenantMessage(name string, from plans.Source, e *plans.Entry, who *access.Who) *adminv1.Tenant {
	shown := entryMessage(who, "", name)
	m := &adminv1.Tenant{Tenant: shown.GetValue(), RawTenant: shown.GetRawValue(), Plan: valid(e.Plan), Source: adminv1.TenantSource(from)} // both use the same numbers
	if e.Numbered {
		m.SetNumber(e.Requests)
	}
	if !e.Until.IsZero() {
		m.Until = timestamppb.New(e.Until)
	}
	return m
}
