package descriptors

import (
	"slices"

	"gopkg.in/yaml.v3"
)

// Overlaid is a rule, or a domain, that an overlay changes.
type Overlaid struct {
	Path  string // of the rule, or the name of the domain
	Place string // in the overlay: file:line
	Keys  string // that are laid over it, and their values, in YAML
}

// Overlaid returns what the overlay changes, in the order of the rules; each domain comes before its rules.
func (s *Set) Overlaid() []Overlaid { return slices.Clone(s.overlaid) }

// lay lays the overlay over what was read of a source of rules.
func (o *overlay) lay(f *rawFile, r *reader) {
	if len(o.all) == 0 || o.failed {
		return
	}
	found := o.domains.matching(nil, step{key: f.domain.s})
	if f.overlay = choose(found, true); f.overlay != nil {
		o.hand.root(f.overlay.node(nil), f)
	}
	o.descend(f.descriptors, found, r)
	o.hand.report = report{overlays: o.files}
}

// descend lays the overlay over descriptors; the ones above them fit the patterns of above.
func (o *overlay) descend(all []rawDescriptor, above []*pattern, r *reader) {
	var found []*pattern
	for i := range all {
		d := &all[i]
		found = found[:0]
		for _, p := range above {
			if p.deep {
				found = append(found, p)
			} else {
				found = p.below.matching(found, step{d.key.s, d.value.s})
			}
		}
		if len(found) == 0 {
			continue
		}
		if d.overlay = choose(found, d.limited()); d.overlay != nil {
			o.put(d.overlay, d, r)
		}
		o.descend(d.children, found, r)
	}
}

// limited reports whether a descriptor has a limit, right or wrong.
func (d *rawDescriptor) limited() bool {
	return d.limit != nil && !d.limit.unlimited.on || d.limitsAt.present() || d.plansAt.present()
}

// choose returns the first of the patterns that has keys, which is laid over what they match if that has a limit.
func choose(found []*pattern, limited bool) (chosen *pattern) {
	for _, p := range found {
		switch {
		case len(p.keys) == 0:
		case !limited:
			p.bare++
		case chosen != nil:
			p.lost++
		default:
			chosen = p
			p.met++
		}
	}
	return chosen
}

// put lays the keys of p over a descriptor with a limit.
func (o *overlay) put(p *pattern, d *rawDescriptor, r *reader) {
	g := o.hand.grammar
	ofLimit := func(k string) bool { return k == kwRateLimit || k == kwRateLimits }
	ofBoth := func(k string) bool { return g[k].where&inLimit != 0 } // they stand in rate_limit, or beside rate_limits
	o.hand.descriptor(p.node(func(k string) bool { return !ofLimit(k) && !ofBoth(k) }), d)
	for _, l := range p.keys {
		if l.k == kwRateLimits {
			d.spread(at(l.v))
		}
	}
	both := append([]*yaml.Node{p.node(ofBoth)}, p.values(kwRateLimit)...)
	had := d.plannedAlone() && len(p.values(kwPlans)) == 0
	for _, n := range both {
		if d.limit != nil {
			o.hand.limit(n, inLimit, d.limit)
			continue
		}
		if had { // plans of its own: what is laid over a limit is laid over each
			o.layPlans(n, d.plans)
			continue
		}
		for i := range d.limits {
			had := d.limits[i].policy
			o.hand.limit(n, inLimit, &d.limits[i])
			d.limits[i].policy = had
		}
		o.hand.pairs(n, inLimit, func(k keyword, v pair) {
			if k.where&inItem == 0 { // it is of the descriptor
				d.policy = o.hand.policy(d.policy, k.name, v.value)
			}
		})
	}
	for _, v := range p.values(kwRateLimits) {
		if had {
			r.fail(at(v), p.path, "rate_limits are laid over the plans of a descriptor: want rate_limit, which is laid over each, or plans")
		} else {
			o.putList(p, v, d, r)
		}
	}
	d.intoPlans()
}

// putList lays rate_limits, whose value is v, over a descriptor with a limit.
func (o *overlay) putList(p *pattern, v *yaml.Node, d *rawDescriptor, r *reader) {
	had, where := d.limits, d.limitsAt
	o.hand.rateLimits(v, d)
	d.limits, d.limitsAt = slices.Concat(had, d.limits), where
	r.trail = append(r.trail[:0], step{key: p.path})
	_ = r.countOK(kwRateLimits, len(d.limits), at(v)) // reports it
}

// values returns those that a key has.
func (p *pattern) values(k string) (all []*yaml.Node) {
	for _, l := range p.keys {
		if l.k == k {
			all = append(all, l.v)
		}
	}
	return all
}

// plannedAlone reports whether a descriptor has plans, and no limit that they would take the place of.
func (d *rawDescriptor) plannedAlone() bool {
	return d.plansAt.present() && d.limit == nil && !d.limitsAt.present()
}

func (o *overlay) layPlans(n *yaml.Node, plans []rawPlan) {
	for i := range plans {
		if plans[i].limit != nil {
			o.hand.limit(n, inLimit, plans[i].limit)
		}
	}
}

// intoPlans makes the limit of a descriptor that plans were laid over the default among them, unless they have one.
func (d *rawDescriptor) intoPlans() {
	if !d.plansAt.present() || d.limit == nil && !d.limitsAt.present() {
		return
	}
	if !slices.ContainsFunc(d.plans, func(p rawPlan) bool { return p.name.s == DefaultPlan }) {
		own := rawPlan{name: text{s: DefaultPlan, at: d.plansAt}, at: d.plansAt, limit: d.limit, limits: d.limits, listed: d.limit == nil}
		d.plans = slices.Insert(d.plans, 0, own)
	}
	d.limit, d.limits, d.limitsAt = nil, nil, mark{}
}

// spread makes a list of a single limit, so that others fit beside it.
func (d *rawDescriptor) spread(where mark) {
	if d.limit == nil || d.limitsAt.present() {
		return
	}
	d.policy, d.limit.policy = d.limit.policy, nil
	d.limits, d.limitsAt, d.limit = []rawLimit{*d.limit}, where, nil
}

// unmet reports the patterns whose keys are laid over nothing. Rules may come later, so that is never an error.
func (o *overlay) unmet() (out Problems) {
	if o.failed {
		return nil
	}
	for _, p := range o.all {
		if p.met > 0 {
			continue
		}
		text := "no rule is on this path: the overlay changes nothing here"
		switch {
		case p.lost > 0:
			text = "all rules on this path are changed by more specific descriptors of the overlay, so this changes nothing"
		case p.bare > 0:
			text = "what is on this path has no limit, so the overlay changes nothing here"
		}
		q := Problem{File: o.hand.fileOf(p.at), Line: p.at.number(), Column: p.at.col(), Path: p.path, Text: text, Warning: true}
		out = append(out, q)
	}
	return out
}
