package descriptors

import (
	"cmp"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// DefaultPlan is the plan of tenants that are on no other one. Each descriptor with plans has it.
const DefaultPlan = "default"

// Bounds of plans.
const (
	maxPlans    = 64
	maxPlanName = 64 // bytes
)

// TreePlan is a plan of a [TreeNode]: one limit, or a list.
type TreePlan struct {
	Name       string
	RateLimit  *TreeLimit
	RateLimits []TreeLimit
}

// rawPlan is what a descriptor says about one plan.
type rawPlan struct {
	name   text
	at     mark
	limit  *rawLimit  // nil if there is a list, or nothing that could be read
	limits []rawLimit // of a list
	listed bool
}

// plans reads plans, whose keys are names.
func (r *reader) plans(n *yaml.Node, d *rawDescriptor) {
	d.plans, d.plansAt = nil, mark{}
	if r.isNull(n) {
		return
	}
	if r.isMapping(kwPlans, n) {
		d.plansAt = at(n)
		r.planPairs(n, d)
	}
}

func (r *reader) planPairs(n *yaml.Node, d *rawDescriptor) {
	m, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		if key.Tag == "!!merge" {
			r.merged(value, func(part *yaml.Node) { r.planPairs(part, d) })
			continue
		}
		if k := target(key); k.Kind != yaml.ScalarNode || resolve(k).kind != kindString || !r.plainTag(k) {
			r.fail(at(key), r.path(), "config error, key is not of type string: %s", brief(key))
			continue
		}
		p := r.plan(value)
		p.name = text{s: target(key).Value, at: at(key)}
		same := func(o rawPlan) bool { return o.name.s == p.name.s }
		if slices.ContainsFunc(d.plans, same) {
			r.warn(at(key), r.path(), "the plan '%s' is repeated: the last one wins", Shorten(p.name.s))
			d.plans = slices.DeleteFunc(d.plans, same)
		}
		d.plans = append(d.plans, p)
	}
}

func (r *reader) plan(n *yaml.Node) rawPlan {
	p := rawPlan{at: at(n)}
	switch t := target(n); {
	case t.Kind == yaml.SequenceNode:
		p.listed, p.limits = true, r.items("a plan", n)
	case r.isMapping("a plan", n):
		p.limit = &rawLimit{at: at(n)}
		r.limit(n, inLimit, p.limit)
	}
	return p
}

func (r *reader) treePlans(n *TreeNode, d *rawDescriptor) {
	for i := range n.Plans {
		d.plansAt = somewhere()
		t := &n.Plans[i]
		p := rawPlan{name: text{s: t.Name, at: somewhere()}, at: somewhere()}
		switch {
		case t.RateLimit != nil && len(t.RateLimits) > 0:
			r.fail(p.at, r.path(), "the plan '%s' has rate_limit and rate_limits: want one of them", Shorten(t.Name))
		case t.RateLimit != nil:
			p.limit = t.RateLimit.raw()
		case r.countOK("a plan", len(t.RateLimits), p.at):
			p.listed = true
			for j := range t.RateLimits {
				p.limits = append(p.limits, *t.RateLimits[j].raw())
			}
		}
		d.plans = append(d.plans, p)
	}
	slices.SortFunc(d.plans, func(a, b rawPlan) int { return cmp.Compare(a.name.s, b.name.s) })
}

// withoutPlans reports plan_of on a descriptor that has no plans.
func (c *compiler) withoutPlans(d *rawDescriptor, path string) {
	if d.planOf.at.present() && !c.misread {
		c.fail(d.planOf.at, path, "plan_of without plans: want the limits of the plans, by their names, under plans")
	}
}

// plans makes the rules of a descriptor's plans: each is a rule like any other, and the node has that of the default.
func (c *compiler) plans(d *rawDescriptor, n *node, path string) {
	for _, k := range d.policy.written() {
		c.fail(k.at, path, "%s is beside plans: it belongs inside each of them", k.k)
	}
	c.overlaid(d, path)
	planAt := c.planOf(d, n, path)
	if len(d.plans) > maxPlans {
		c.fail(d.plansAt, path, "plans has %d plans: want 1 to %d", len(d.plans), maxPlans)
		return
	}
	var all []*Rule
	for i := range d.plans {
		p := &d.plans[i]
		if !planName(p.name.s) {
			c.fail(p.name.at, path, "the name '%s' of a plan: want 1 to %d letters, digits, hyphens and underscores", Shorten(p.name.s), maxPlanName)
			continue
		}
		r := c.newRule(d, path)
		r.PlanOf, r.Plan, r.planAt = d.planOf.s, p.name.s, planAt
		place := path + "." + kwPlans + "." + p.name.s
		switch {
		case p.listed:
			c.list(p.limits, r, place)
			c.finish(nil, r, n)
		case p.limit != nil:
			c.single(p.limit, r, place)
			c.finish(p.limit.policy, r, n)
		default:
			continue // that has been reported
		}
		if r.Holder != "" && r.holderAt == planAt {
			c.fail(p.at, place, "holder and plan_of are the same entry '%s', whose values share one counter: want another one in one of them", r.Holder)
		}
		r.Path = r.planPath(path)
		all = append(all, r)
		if r.Plan == DefaultPlan {
			n.rule = r
		}
	}
	for _, r := range all {
		r.plans = all
	}
	if !slices.ContainsFunc(d.plans, func(p rawPlan) bool { return p.name.s == DefaultPlan }) {
		c.fail(d.plansAt, path, "plans without %s: want it too, for tenants that are on no other plan", DefaultPlan)
	}
}

// planOf returns the index of the entry that names the tenant; −1 after an error.
func (c *compiler) planOf(d *rawDescriptor, n *node, path string) int {
	if !d.planOf.at.present() {
		if !d.planOf.broken {
			c.fail(d.plansAt, path, "plans without plan_of: want the key of the entry whose value names the tenant")
		}
		return -1
	}
	found := -1
	var keys []string
	for i, above := range n.path() {
		keys = append(keys, above.key)
		if above.key == d.planOf.s {
			found = i
		}
	}
	switch {
	case d.planOf.broken:
	case found < 0:
		c.fail(d.planOf.at, path, "plan_of '%s' is not a key of this descriptor or of one above it: want one of %q", Shorten(d.planOf.s), keys)
	case n.path()[found].flags&shareThreshold != 0:
		c.fail(d.planOf.at, path, "plan_of '%s' is an entry with share_threshold, whose tenants share one counter: want one of them", d.planOf.s)
	}
	return found
}

// planName reports whether a text can be the name of a plan, which becomes part of metrics.
func planName(s string) bool {
	return s != "" && len(s) <= maxPlanName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

// planPath returns the path of a rule that is a plan: that of its descriptor, with the plan behind the entry that names
// the tenant, as in shop.user@gold.path.
func (r *Rule) planPath(path string) string {
	if r.planAt < 0 {
		return path
	}
	way := r.node.path()
	var rest strings.Builder
	for _, n := range way[r.planAt+1:] {
		rest.WriteString("." + n.label())
	}
	return strings.TrimSuffix(path, rest.String()) + "@" + r.Plan + rest.String()
}

// appendPlan appends the plan to the level of a path that the i-th entry has, if that names the tenant.
func (r *Rule) appendPlan(level []byte, i int) []byte {
	if i != r.planAt {
		return level
	}
	return append(append(level, '@'), r.Plan...)
}

// Plans returns the rules of all plans of the descriptor that r is a plan of, in the order of the file; nil if it is none.
// They must not be changed.
func (r *Rule) Plans() []*Rule { return r.plans }

// PlanNames returns the names of the descriptor's plans, in words.
func (r *Rule) PlanNames() string {
	names := make([]string, len(r.plans))
	for i, p := range r.plans {
		names[i] = p.Plan
	}
	return strings.Join(names, ", ")
}

// Tenant returns the value of the entry that names the tenant; ok is false for a rule without plans. The bytes are those
// of entries.
func (m Match) Tenant(entries []Entry) (tenant []byte, ok bool) {
	if m.Rule == nil || m.Rule.planAt < 0 || m.Rule.planAt >= len(entries) {
		return nil, false
	}
	return entries[m.Rule.planAt].Value, true
}

// OnPlan has the matched rule be that of a plan. It returns false, and changes nothing, if the descriptor has no such
// plan.
func (m *Match) OnPlan(name string) bool {
	r := m.Rule.plan(name)
	if r != nil {
		m.Rule = r
	}
	return r != nil
}

// PlanNames returns the names of all plans of the set, sorted.
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
