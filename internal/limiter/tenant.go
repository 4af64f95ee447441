package limiter

import (
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// match returns what entries lead to, which is the plan of the tenant where the rule has plans, and what is said of the tenant. A
// tenant of whom nothing is said, or whose plan the descriptor does not have, is on the default.
func (s *snapshot) match(d *descriptors.Domain, entries []descriptors.Entry) (m descriptors.Match, own tenants.Entry) {
	m = d.Match(entries)
	name, ok := m.Tenant(entries)
	if !ok {
		return m, tenants.Entry{}
	}
	e, from := s.tenants.Find(name)
	if from == tenants.Nowhere || !m.OnPlan(e.Plan) {
		return m, tenants.Entry{}
	}
	return m, e
}

// Matched returns the rule that entries meet, which is the plan of the tenant where it has plans, or nil.
func (l *Limiter) Matched(domain []byte, entries []descriptors.Entry) *descriptors.Rule {
	s := l.rules.Load()
	if s == nil {
		return nil
	}
	d := s.set.Domain(domain)
	if d == nil {
		return nil
	}
	m, _ := s.match(d, entries)
	return m.Rule
}

// number puts a tenant's own number in force, in place of that of the first limit of its plan.
func (p *Scratch) number(t *part, requests uint32) {
	if t.unlimited {
		t.unnumbered = errUnlimited
		return
	}
	first := t.limits.At(0)
	item, err := t.match.Relimited(0, descriptors.Override{RequestsPerUnit: requests, Unit: first.Unit, Multiplier: first.Multiplier})
	if err != nil {
		t.unnumbered = err
		return
	}
	since, all := p.kept.Len(), t.limits
	t.limits, t.numbered = p.keep(&item, since), true
	for j := 1; j < all.Len(); j++ {
		t.limits = p.keep(all.At(j), since)
	}
}

// explainPlan says which plan t is on, and why, and what its limit is.
func (t *part) explainPlan(all *tenants.Tenants, entries []descriptors.Entry) (steps []descriptors.Step) {
	add := func(format string, args ...any) {
		steps = append(steps, descriptors.Step{Text: fmt.Sprintf(format, args...)})
	}
	rule := t.match.Rule
	name, _ := t.match.Tenant(entries)
	if !all.On() {
		add("there is no table of tenants, so the plan is %s: set TENANTS_FILE or TENANTS_REDIS", descriptors.DefaultPlan)
	}
	found, otherwise := false, ""
	for _, said := range all.Said(name) {
		switch e := &said.Entry; {
		case found:
			add("%v says %v, and does not count", said.Source, e)
		case e.Over(time.Now()):
			add("%v says %v, which is over", said.Source, e)
			otherwise = "else "
		case rule.Plan != e.Plan:
			found = true
			add("%v says %v, which %s does not have, so the plan is %s: want %s", said.Source, e, rule.Path, descriptors.DefaultPlan, rule.PlanNames())
		default:
			found = true
			add("%v says %v", said.Source, e)
		}
	}
	if !found && all.On() {
		add("nothing %sis said of this tenant, so the plan is %s", otherwise, descriptors.DefaultPlan)
	}
	add("%s", t.match.Outcome(entries))
	switch {
	case t.unnumbered != nil:
		add("the tenant's own number has no effect: %v", t.unnumbered)
	case t.numbered && !t.override && t.control == nil:
		add("the tenant's own number makes it %v", t.limits.At(0))
	}
	return steps
}
