package rulefile

import (
	"math"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// File reads the root of a source. If it cannot read all of it, the result is incomplete.
func (r *Reader) File(n *yaml.Node) (f File) {
	r.Trail = []Step{{Key: peek(n, KeyDomain)}}
	r.Root(n, &f)
	r.Unread = r.spent // the missing rest would cause further errors
	return f
}

// Root reads the keys of a map into f.
func (r *Reader) Root(n *yaml.Node, f *File) {
	r.Mapping(n, InRoot, func(k string, v *yaml.Node) {
		switch k {
		case KeyDomain:
			f.Domain = r.Text(k, v)
		case KeyCharge:
			f.Charge = r.Text(k, v)
		case KeyAllowLimitOverride:
			f.Override = r.flag(k, v)
		case KeyQuotaGroupBy:
			f.GroupBy, f.GroupByAt = r.texts(k, v)
		case KeyDescriptors:
			f.Descriptors = r.descriptors(v)
		}
	})
}

// descriptors reads a list of descriptors.
func (r *Reader) descriptors(n *yaml.Node) []Descriptor {
	items, leave, ok := r.list(KeyDescriptors, n)
	if !ok {
		return nil
	}
	defer leave()
	if len(items) > 0 && r.tooDeep(At(n)) {
		return nil
	}
	out := make([]Descriptor, 0, len(items))
	for _, item := range items {
		if r.spent {
			break
		}
		if !r.isElement(item) {
			continue
		}
		m := Target(item)
		d := Descriptor{At: At(item)}
		if r.Nodes {
			d.Node = item
		}
		r.Trail = append(r.Trail, Step{peek(m, KeyKey), peek(m, KeyValue)})
		out = append(out, d)
		r.countPath(d.At)
		r.Descriptor(item, &out[len(out)-1])
		r.Trail = r.Trail[:len(r.Trail)-1]
	}
	return out
}

// countPath counts the bytes of the current path, and stops reading if the total is too large. Each path repeats those above it.
func (r *Reader) countPath(at Mark) {
	for _, s := range r.Trail {
		r.paths -= len(s.Key) + len(s.Value) + 2
	}
	if r.paths < 0 {
		r.spent = true
		r.Fail(at, r.Path(), "error loading config file: the paths of its descriptors are too long in total: "+
			"shorten the keys and values of descriptors with many descriptors below them")
	}
}

// tooDeep reports an error and returns true if the current descriptors are nested too deeply.
func (r *Reader) tooDeep(where Mark) bool {
	if len(r.Trail) <= MaxDepth {
		return false
	}
	r.Fail(where, r.Path(), "descriptors are nested more than %d deep", MaxDepth)
	return true
}

// Descriptor reads the keys of a map into d.
func (r *Reader) Descriptor(n *yaml.Node, d *Descriptor) {
	r.Mapping(n, InDescriptor, func(k string, v *yaml.Node) {
		switch k {
		case KeyKey:
			d.Key = r.Text(k, v)
		case KeyValue:
			d.Value = r.Text(k, v)
		case KeyDescriptors:
			d.Children, d.ChildrenAt = r.descriptors(v), At(v)
		case KeyRateLimit:
			r.rateLimit(v, d)
		case KeyRateLimits:
			r.RateLimits(v, d)
		case KeyPlanOf:
			d.PlanOf = r.Text(k, v)
		case KeyPlans:
			r.plans(v, d)
		case KeyShadowMode:
			d.Shadow = r.flag(k, v)
		case KeyQuotaMode:
			d.Quota = r.flag(k, v)
		case KeyDetailedMetric:
			d.Detailed = r.flag(k, v)
		case KeyValueToMetric:
			d.ValueToMetric = r.flag(k, v)
		case KeyShareThreshold:
			d.Share = r.flag(k, v)
		case KeyMetadata:
			d.Metadata, d.MetadataAt = r.metadata(v), At(v)
		default:
			d.Policy = r.Policy(d.Policy, k, v)
		}
	})
}

// rateLimit reads rate_limit. If it is repeated or merged in, later keys override earlier ones, as in the reference.
func (r *Reader) rateLimit(n *yaml.Node, d *Descriptor) {
	if r.IsNull(n) {
		d.Limit = nil
		return
	}
	if !r.isMapping(KeyRateLimit, n) {
		return
	}
	if d.Limit == nil {
		d.Limit = new(Limit)
	}
	d.Limit.At = At(n)
	r.Limit(n, InLimit, d.Limit)
}

// RateLimits reads rate_limits.
func (r *Reader) RateLimits(n *yaml.Node, d *Descriptor) {
	d.Limits, d.LimitsAt = nil, Mark{}
	if r.IsNull(n) {
		return
	}
	d.LimitsAt = At(n)
	d.Limits = r.items(KeyRateLimits, n)
}

// items reads a list of limits.
func (r *Reader) items(k string, n *yaml.Node) (limits []Limit) {
	items, leave, ok := r.list(k, n)
	if !ok {
		return nil
	}
	defer leave()
	if !r.CountOK(k, len(items), At(n)) {
		return nil
	}
	for _, item := range items {
		if r.isElement(item) {
			limits = append(limits, Limit{At: At(item)})
			r.Limit(item, InItem, &limits[len(limits)-1])
		}
	}
	return limits
}

// CountOK reports an error and returns false if the number of limits in a list is out of range.
func (r *Reader) CountOK(k string, n int, where Mark) bool {
	if n > 0 && n <= MaxItems {
		return true
	}
	r.Fail(where, r.Path(), "%s has %d items: want 1 to %d", k, n, MaxItems)
	return false
}

// Limit reads the keys of rate_limit, or of an item of rate_limits, into l.
func (r *Reader) Limit(n *yaml.Node, where Place, l *Limit) {
	r.Mapping(n, where, func(k string, v *yaml.Node) {
		switch k {
		case KeyUnit:
			l.Unit = r.Text(k, v)
		case KeyRequestsPerUnit:
			l.Requests = r.number(k, v)
		case KeyUnlimited:
			l.Unlimited = r.flag(k, v)
		case KeyName:
			l.Name = r.Text(k, v)
		case KeyReplaces:
			l.Replaces = r.replaces(v)
		case KeyOnFailure, KeyPenalty, KeyHolder, KeyLease, KeyHeaders, KeyReserve, KeyRLQS:
			l.Policy = r.Policy(l.Policy, k, v)
		default:
			r.own(l, k, v)
		}
	})
}

// own reads an extension key of a limit. The last occurrence counts. A number or flag that is null is absent.
func (r *Reader) own(l *Limit, k string, v *yaml.Node) {
	l.Owns = slices.DeleteFunc(l.Owns, func(o Own) bool { return o.Key == k })
	own := Own{Key: k}
	before := r.Failures
	switch kindOf(k) {
	case engine.KindNumber:
		n := r.number(k, v)
		own.N, own.At = n.N, n.At
	case engine.KindFlag:
		if k == engine.ParamCalendar.String() && Target(v).Kind == yaml.MappingNode {
			own.At, own.N = At(v), 1
			r.begin(v, &own.Begin)
			break
		}
		f := r.flag(k, v)
		own.At = f.At
		if f.On {
			own.N = 1
		}
	case engine.KindTime, engine.KindWord, engine.KindZone:
		own.Text = r.Text(k, v)
	}
	if r.Failures > before {
		own.At, own.Broken = At(v), true
	}
	if own.At.Present() {
		l.Owns = append(l.Owns, own)
	}
}

// begin reads the map of a calendar.
func (r *Reader) begin(n *yaml.Node, b *Begin) {
	r.Mapping(n, InCalendar, func(k string, v *yaml.Node) {
		switch k {
		case KeyMonth:
			b.Month = r.number(k, v)
		case KeyDay:
			b.Day = r.number(k, v)
		case KeyWeekday:
			b.Weekday = r.number(k, v)
		case KeyHour:
			b.Hour = r.number(k, v)
		}
	})
}

// kindOf returns the kind of the value of an extension key of a limit.
func kindOf(k string) engine.Kind {
	for p := range engine.Parameters() {
		if p.String() == k {
			return p.Kind()
		}
	}
	if k == KeyUnitMultiplier {
		return engine.KindNumber
	}
	return engine.KindWord // algorithm
}

// replaces reads replaces.
func (r *Reader) replaces(n *yaml.Node) []Text {
	items, leave, ok := r.list(KeyReplaces, n)
	if !ok {
		return nil
	}
	defer leave()
	out := make([]Text, 0, len(items))
	for _, item := range items {
		if !r.isElement(item) {
			continue
		}
		name := Text{At: At(item)}
		r.Mapping(item, InReplaces, func(k string, v *yaml.Node) { name = r.Text(k, v) })
		out = append(out, name)
	}
	return out
}

// Policy reads a key into p, or into a new Policy if p is nil, and returns the Policy.
func (r *Reader) Policy(p *Policy, k string, v *yaml.Node) *Policy {
	if p == nil {
		p = new(Policy)
	}
	switch k {
	case KeyOnFailure:
		p.OnFailure = r.Text(k, v)
	case KeyHolder:
		p.Holder = r.Text(k, v)
	case KeyLease:
		p.Lease = r.Text(k, v)
	case KeyHeaders:
		p.Headers = r.Text(k, v)
	case KeyPenalty:
		p.PenaltyAt, p.Penalty = Mark{}, Penalty{}
		if !r.IsNull(v) && r.isMapping(k, v) {
			p.PenaltyAt = At(v)
			r.penalty(v, &p.Penalty)
		}
	case KeyReserve:
		p.ReserveAt, p.Reserve = Mark{}, Reserve{}
		if !r.IsNull(v) && r.isMapping(k, v) {
			p.ReserveAt = At(v)
			r.reserve(v, &p.Reserve)
		}
	case KeyRLQS:
		p.RLQSAt, p.RLQS = r.rlqs(v)
	}
	return p
}

// rlqs reads a map or a flag. True means an empty map.
func (r *Reader) rlqs(n *yaml.Node) (at Mark, q RLQS) {
	if Target(n).Kind != yaml.MappingNode {
		if f := r.flag(KeyRLQS, n); f.On {
			at = f.At
		}
		return at, q
	}
	r.Mapping(n, InRLQS, func(k string, v *yaml.Node) {
		switch k {
		case KeyMode:
			q.Mode = r.Text(k, v)
		case KeyWeightFrom:
			q.WeightFrom = r.Text(k, v)
		}
	})
	return At(n), q
}

// reserve reads reserve.
func (r *Reader) reserve(n *yaml.Node, s *Reserve) {
	r.Mapping(n, InReserve, func(k string, v *yaml.Node) {
		switch k {
		case KeyTTL:
			s.TTL = r.Text(k, v)
		case KeyEstimate:
			s.Estimate = r.number(k, v)
		case KeyOnExpiry:
			s.OnExpiry = r.Text(k, v)
		case KeyEntry:
			s.Entry = r.Text(k, v)
		case KeyBy:
			s.By = r.Text(k, v)
		}
	})
}

// penalty reads penalty.
func (r *Reader) penalty(n *yaml.Node, p *Penalty) {
	r.Mapping(n, InPenalty, func(k string, v *yaml.Node) {
		switch k {
		case KeyFor:
			p.Duration = r.Text(k, v)
		case KeyOn:
			p.On = r.Text(k, v)
		case KeyEscalate:
			p.Escalate = r.number(k, v)
		case KeyMax:
			p.Max = r.Text(k, v)
		}
	})
}

// plans reads plans, whose keys are the plans' names.
func (r *Reader) plans(n *yaml.Node, d *Descriptor) {
	d.Plans, d.PlansAt = nil, Mark{}
	if r.IsNull(n) {
		return
	}
	if r.isMapping(KeyPlans, n) {
		d.PlansAt = At(n)
		r.planPairs(n, d)
	}
}

// planPairs reads the pairs of plans.
func (r *Reader) planPairs(n *yaml.Node, d *Descriptor) {
	m, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	for i := 0; i+1 < len(m.Content) && len(d.Plans) <= MaxPlans; i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		if key.Tag == "!!merge" {
			r.merged(value, func(part *yaml.Node) { r.planPairs(part, d) })
			continue
		}
		if k := Target(key); k.Kind != yaml.ScalarNode || resolve(k).kind != kindString || !r.plainTag(k) {
			r.Fail(At(key), r.Path(), "config error, key is not of type string: %s", brief(key))
			continue
		}
		p := r.plan(value)
		p.Name = Text{Value: Target(key).Value, At: At(key)}
		same := func(o Plan) bool { return o.Name.Value == p.Name.Value }
		if slices.ContainsFunc(d.Plans, same) {
			r.Warn(At(key), r.Path(), "the plan '%s' is repeated: the last one wins", plain.Shorten(p.Name.Value))
			d.Plans = slices.DeleteFunc(d.Plans, same)
		}
		d.Plans = append(d.Plans, p)
	}
}

// plan reads a plan: a limit or a list of limits.
func (r *Reader) plan(n *yaml.Node) Plan {
	p := Plan{At: At(n)}
	switch t := Target(n); {
	case t.Kind == yaml.SequenceNode:
		p.Listed, p.Limits = true, r.items("a plan", n)
	case r.isMapping("a plan", n):
		p.Limit = &Limit{At: At(n)}
		r.Limit(n, InLimit, p.Limit)
	}
	return p
}

// Source reads a source, from either Root or Data.
func (r *Reader) Source(s *Source) File {
	if s.Root != nil {
		r.visits, r.paths, r.open = math.MaxInt, freePaths+4*len(s.Data), map[*yaml.Node]struct{}{}
		return r.File(s.Root)
	}
	return r.read(s.Data)
}
