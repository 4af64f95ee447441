package overlay

import (
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// apply applies the overlay to a parsed file of rules.
func (o *overlay) apply(f *rulefile.File, r *rulefile.Reader) {
	o.applied = true
	r.Overlays = o.files
	if len(o.all) == 0 || o.failed {
		return
	}
	found := o.domains.matching(nil, rulefile.Step{Key: f.Domain.Value})
	if p := choose(found, true); p != nil {
		f.Overlay = &p.laid
		for _, l := range p.keys {
			o.silentReader.RootKey(f, l.k, l.v)
		}
	}
	o.descend(f.Descriptors, found, r)
	o.silentReader.Report = rulefile.Report{Overlays: o.files}
}

// descend applies the overlay to descriptors whose ancestors match the patterns above.
func (o *overlay) descend(all []rulefile.Descriptor, above []*pattern, r *rulefile.Reader) {
	var found []*pattern
	for i := range all {
		d := &all[i]
		found = found[:0]
		for _, p := range above {
			if p.deep {
				found = append(found, p)
			} else {
				found = p.below.matching(found, rulefile.Step{Key: d.Key.Value, Value: d.Value.Value})
			}
		}
		if len(found) == 0 {
			continue
		}
		if p := choose(found, limited(d)); p != nil {
			d.Overlay = &p.laid
			o.applyTo(p, d, r)
		}
		o.descend(d.Children, found, r)
	}
}

// choose returns the most specific pattern with keys, and nil for a descriptor without a limit. It updates the
// patterns' statistics.
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

// applyTo applies the keys of p to a descriptor with a limit.
func (o *overlay) applyTo(p *pattern, d *rulefile.Descriptor, r *rulefile.Reader) {
	lists := p.with(rulefile.KeyRateLimits)
	for _, l := range lists {
		spread(d, rulefile.At(l.v))
	}
	planned := plannedAlone(d) && len(p.with(rulefile.KeyPlans)) == 0
	lay := func(k *rulefile.Keyword, v *yaml.Node) { o.layOverLimits(d, planned, k, v) }
	for _, l := range p.keys {
		switch {
		case l.k.Name == rulefile.KeyRateLimit || l.k.Name == rulefile.KeyRateLimits:
		case l.k.Where&rulefile.InLimit != 0:
			lay(l.k, l.v)
		default:
			o.silentReader.DescriptorKey(d, l.k, l.v)
		}
	}
	for _, l := range p.with(rulefile.KeyRateLimit) {
		o.silentReader.Mapping(l.v, rulefile.InLimit, lay)
	}
	for _, l := range lists {
		at := rulefile.At(l.v)
		if planned {
			r.Fail(at, p.path, "rate_limits cannot change the plans of a descriptor: use rate_limit, which changes each of them, or plans")
			continue
		}
		had, where := d.Limits, d.LimitsAt
		o.silentReader.DescriptorKey(d, l.k, l.v)
		d.Limits, d.LimitsAt = slices.Concat(had, d.Limits), where
		r.Trail = append(r.Trail[:0], rulefile.Step{Key: p.path})
		_ = r.CountOK(l.k.Name, len(d.Limits), at) // reports an error
	}
	intoPlans(d)
}

// layOverLimits applies a key of limits to each limit of a descriptor or of its plans.
func (o *overlay) layOverLimits(d *rulefile.Descriptor, planned bool, k *rulefile.Keyword, v *yaml.Node) {
	s := o.silentReader
	switch {
	case d.Limit != nil:
		s.LimitKey(d.Limit, k, v)
	case planned:
		for i := range d.Plans {
			if l := d.Plans[i].Limit; l != nil {
				s.LimitKey(l, k, v)
			}
		}
	case k.Where&rulefile.InItem == 0: // the key belongs next to rate_limits
		s.DescriptorKey(d, k, v)
	default:
		for i := range d.Limits {
			s.LimitKey(&d.Limits[i], k, v)
		}
	}
}

// with returns the occurrences of a key. The reader has reported repeated ones.
func (p *pattern) with(k string) (all []laidKey) {
	for _, l := range p.keys {
		if l.k.Name == k {
			all = append(all, l)
		}
	}
	return all
}

// problems returns the errors of the overlay, or a warning for each pattern that changed no rule. Matching rules may come later, so
// the warnings are not errors, even in strict mode.
func (o *overlay) problems() (all rulefile.Problems) {
	for _, r := range o.reports {
		all = append(all, r.Sorted()...)
	}
	if !o.applied || o.failed {
		return all
	}
	r := rulefile.Report{Overlays: o.files}
	for _, p := range o.all {
		if p.met > 0 {
			continue
		}
		text := "no rule is on this path: the overlay changes nothing here"
		switch {
		case p.lost > 0:
			text = "all rules on this path are changed by more specific descriptors of the overlay, so this changes nothing"
		case p.bare > 0:
			text = "the rule on this path has no limit, so the overlay changes nothing here"
		}
		r.Warn(p.at, p.path, "%s", text)
	}
	return append(all, r.Problems...)
}

// plannedAlone reports whether a descriptor has plans, and no limit that they would replace.
func plannedAlone(d *rulefile.Descriptor) bool {
	return d.PlansAt.Present() && d.Limit == nil && !d.LimitsAt.Present()
}

// intoPlans converts the limit of a descriptor with plans from an overlay to the default plan, unless they have one.
func intoPlans(d *rulefile.Descriptor) {
	if !d.PlansAt.Present() || d.Limit == nil && !d.LimitsAt.Present() {
		return
	}
	if !slices.ContainsFunc(d.Plans, func(p rulefile.Plan) bool { return p.Name.Value == rulefile.DefaultPlan }) {
		own := rulefile.Plan{
			Name: rulefile.Text{Value: rulefile.DefaultPlan, At: d.PlansAt}, At: d.PlansAt,
			Limit: d.Limit, Limits: d.Limits, Listed: d.Limit == nil,
		}
		d.Plans = slices.Insert(d.Plans, 0, own)
	}
	d.Limit, d.Limits, d.LimitsAt = nil, nil, rulefile.Mark{}
}

// spread converts a single limit to a list, so that further limits can be added.
func spread(d *rulefile.Descriptor, where rulefile.Mark) {
	if d.Limit == nil || d.LimitsAt.Present() {
		return
	}
	beside := func(f rulefile.Field) bool { return f.Where&rulefile.InItem == 0 }
	for _, f := range d.Limit.Fields {
		if beside(f) {
			d.Fields = append(d.Fields, f)
		}
	}
	d.Limit.Fields = slices.DeleteFunc(d.Limit.Fields, beside)
	d.Limits, d.LimitsAt, d.Limit = []rulefile.Limit{*d.Limit}, where, nil
}

// limited reports whether a descriptor has a limit, valid or not.
func limited(d *rulefile.Descriptor) bool {
	return d.Limit != nil && !d.Limit.Get(rulefile.KeyUnlimited).On() || d.LimitsAt.Present() || d.PlansAt.Present()
}
