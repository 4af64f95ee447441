package descriptors

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// withoutPlans reports plan_of on a descriptor without plans.
func (c *compiler) withoutPlans(d *rulefile.Descriptor, path string) {
	if of := d.Get(rulefile.KeyPlanOf); of.At.Present() && !c.misread {
		c.Fail(of.At, path, "plan_of without plans: add plans, with the limits of each plan under its name")
	}
}

// plans creates a rule for each plan of a descriptor. The node's rule is that of the default plan.
func (c *compiler) plans(d *rulefile.Descriptor, n *Node, path string) {
	for _, k := range d.In(rulefile.InLimit) {
		c.Fail(k.At, path, "%s is beside plans: it belongs inside each of them", k.Name)
	}
	c.overlaid(d, path)
	planAt := c.planOf(d, n, path)
	if len(d.Plans) > rulefile.MaxPlans {
		c.Fail(d.PlansAt, path, "plans has more than %d plans: want 1 to %[1]d", rulefile.MaxPlans)
		return
	}
	var all []*Rule
	for i := range d.Plans {
		p := &d.Plans[i]
		if !planName(p.Name.Value) {
			c.Fail(p.Name.At, path,
				"the name '%s' of a plan: want 1 to %d letters, digits, hyphens and underscores", plain.Shorten(p.Name.Value), rulefile.MaxPlanName)
			continue
		}
		r := c.newRule(d, path)
		r.PlanOf, r.Plan, r.planAt = d.Get(rulefile.KeyPlanOf).Value, p.Name.Value, planAt
		place := path + "." + rulefile.KeyPlans + "." + p.Name.Value
		switch {
		case p.Listed:
			c.list(p.Limits, r, place)
			c.finish(nil, r, n)
		case p.Limit != nil:
			c.single(p.Limit, r, place)
			c.finish(p.Limit.Fields, r, n)
		default:
			continue // has been reported
		}
		if r.Holder != "" && r.holderAt == planAt {
			c.Fail(p.At, place,
				"holder and plan_of are the same entry '%s', whose values share one counter: use a different entry for one of them", r.Holder)
		}
		r.Path = r.planPath(path)
		all = append(all, r)
		if r.Plan == rulefile.DefaultPlan {
			n.Rule = r
		}
	}
	for _, r := range all {
		r.plans = all
	}
	c.plansReserve(d.PlansAt, path, all)
	c.plansApart(d.PlansAt, path, all)
	if !slices.ContainsFunc(d.Plans, func(p rulefile.Plan) bool { return p.Name.Value == rulefile.DefaultPlan }) {
		c.Fail(d.PlansAt, path, "plans must include %[1]s, for tenants without a plan: add %[1]s: {unit: hour, requests_per_unit: 100}, with your numbers", rulefile.DefaultPlan)
	}
}

// planOf returns the index of the entry that identifies the tenant; −1 after an error.
func (c *compiler) planOf(d *rulefile.Descriptor, n *Node, path string) int {
	of := d.Get(rulefile.KeyPlanOf)
	if !of.At.Present() {
		c.Fail(d.PlansAt, path, "plans without plan_of: set plan_of to the key of the entry whose value names the tenant")
		return -1
	}
	if of.Broken {
		return -1
	}
	found := c.above(of, "", path, n)
	if found >= 0 && n.path()[found].flags&shareThreshold != 0 {
		c.Fail(of.At, path,
			"plan_of '%s' is an entry with share_threshold, whose tenants share one counter: use only one of them", of.Value)
	}
	return found
}

// planName reports whether s is a valid name of a plan, which becomes part of metrics.
func planName(s string) bool {
	return s != "" && len(s) <= rulefile.MaxPlanName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// planPath returns the path of a plan's rule: the path of its descriptor, with the plan after the entry that identifies the tenant, as in
// shop.user@gold.path.
func (r *Rule) planPath(path string) string {
	if r.planAt < 0 {
		return path
	}
	way := r.node.path()
	var rest strings.Builder
	for _, n := range way[r.planAt+1:] {
		rest.WriteString("." + n.Label())
	}
	return strings.TrimSuffix(path, rest.String()) + "@" + r.Plan + rest.String()
}

// appendPlan appends the plan to the level of the i-th entry if that identifies the tenant.
func (r *Rule) appendPlan(level []byte, i int) []byte {
	if i != r.planAt {
		return level
	}
	return append(append(level, '@'), r.Plan...)
}

// Plans returns the rules of all plans of r's descriptor in file order; nil if r is not a plan. The caller must not modify them.
func (r *Rule) Plans() []*Rule { return r.plans }

// PlanNames returns the names of the descriptor's plans, separated by commas.
func (r *Rule) PlanNames() string {
	names := make([]string, len(r.plans))
	for i, p := range r.plans {
		names[i] = p.Plan
	}
	return strings.Join(names, ", ")
}

// Tenant returns the value of the entry that identifies the tenant; ok is false for a rule without plans. The bytes alias entries.
func (m Match) Tenant(entries []Entry) (tenant []byte, ok bool) {
	if m.Rule == nil || m.Rule.planAt < 0 || m.Rule.planAt >= len(entries) && m.Rule.byAt < 0 {
		return nil, false
	}
	return m.entry(entries, m.Rule.planAt).Value, true
}

// OnPlan replaces the matched rule by that of a plan. If the descriptor has no such plan, it returns false and changes nothing.
func (m *Match) OnPlan(name string) bool {
	r := m.Rule.OfPlan(name)
	if r != nil {
		m.Rule = r
	}
	return r != nil
}

// WithNumber returns the first limit of the matched rule with a tenant's own number. The error is the reason why it has no effect.
func (m Match) WithNumber(requests uint64) (RateLimit, error) {
	if m.Rule.Unlimited {
		return RateLimit{}, errUnlimited
	}
	first := m.Rule.RateLimits.At(0)
	to := Override{Unit: first.Unit, Multiplier: first.Multiplier}
	to.SetNumber(requests)
	return m.WithOverride(0, to)
}

var errUnlimited = errors.New("the plan is unlimited")

// CheckNumber returns an error if a tenant's own number has no effect on a rule of its plan. A nil Set has no rules.
func (s *Set) CheckNumber(plan string, requests uint64) error {
	if s == nil {
		return nil
	}
	for _, r := range s.rules {
		if r.Plan != plan {
			continue
		}
		if _, err := (Match{Rule: r}).WithNumber(requests); err != nil {
			return fmt.Errorf("requests_per_unit %d has no effect on %s: %w", requests, r.Path, err)
		}
	}
	return nil
}

// PlanNames returns the sorted names of all plans of the set.
func (s *Set) PlanNames() []string {
	var names []string
	for _, r := range s.rules {
		if r.Plan != "" {
			names = append(names, r.Plan)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OfPlan returns the rule of a plan of the same descriptor, or nil.
func (r *Rule) OfPlan(name string) *Rule {
	for _, p := range r.plans {
		if p.Plan == name {
			return p
		}
	}
	return nil
}
