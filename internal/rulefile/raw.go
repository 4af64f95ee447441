package rulefile

import (
	"math"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// File reads the root of a source. If it cannot read all of it, the result is incomplete.
func (r *Reader) File(n *yaml.Node) (f File) {
	r.Trail = []Step{{Key: peek(n, KeyDomain)}}
	r.Mapping(n, InRoot, func(k *Keyword, v *yaml.Node) { r.RootKey(&f, k, v) })
	r.Unread = r.spent // the missing rest would cause further errors
	return f
}

// RootKey reads a key of the top level into f.
func (r *Reader) RootKey(f *File, k *Keyword, v *yaml.Node) {
	switch k.Name {
	case KeyDomain:
		f.Domain = r.Text(k, v)
	case KeyQuotaGroupBy:
		f.GroupBy, f.GroupByAt = r.texts(k, v)
	case KeyDescriptors:
		f.Descriptors = r.descriptors(v)
	default:
		f.Fields = r.Field(f.Fields, k, v)
	}
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
		to := &out[len(out)-1]
		r.Mapping(item, InDescriptor, func(k *Keyword, v *yaml.Node) { r.DescriptorKey(to, k, v) })
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

// DescriptorKey reads a key of a descriptor into d.
func (r *Reader) DescriptorKey(d *Descriptor, k *Keyword, v *yaml.Node) {
	switch k.Name {
	case KeyKey:
		d.Key = r.Text(k, v)
	case KeyValue:
		d.Value = r.Text(k, v)
	case KeyDescriptors:
		d.Children, d.ChildrenAt = r.descriptors(v), At(v)
	case KeyRateLimit:
		r.rateLimit(v, d)
	case KeyRateLimits:
		r.rateLimits(v, d)
	case KeyPlans:
		r.plans(v, d)
	case KeyMetadata:
		d.Metadata, d.MetadataAt = r.metadata(v), At(v)
	default:
		d.Fields = r.Field(d.Fields, k, v)
	}
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
	r.limit(n, InLimit, d.Limit)
}

// rateLimits reads rate_limits.
func (r *Reader) rateLimits(n *yaml.Node, d *Descriptor) {
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
			r.limit(item, InItem, &limits[len(limits)-1])
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

// limit reads the keys of rate_limit, or of an item of rate_limits, into l.
func (r *Reader) limit(n *yaml.Node, where Place, l *Limit) {
	r.Mapping(n, where, func(k *Keyword, v *yaml.Node) { r.LimitKey(l, k, v) })
}

// LimitKey reads a key of rate_limit, or of an item of rate_limits, into l.
func (r *Reader) LimitKey(l *Limit, k *Keyword, v *yaml.Node) {
	if k.Name == KeyReplaces {
		l.Replaces = r.replaces(v)
	} else {
		l.Fields = r.Field(l.Fields, k, v)
	}
}

// Field reads a key by its row in the grammar, and returns fields with it. The last occurrence counts. A null number, flag, or map is
// absent.
func (r *Reader) Field(fields Fields, k *Keyword, v *yaml.Node) Fields {
	fields = slices.DeleteFunc(fields, func(f Field) bool { return f.Name == k.Name })
	f, before := Field{Keyword: k}, r.Failures
	switch {
	case k.Kind == KindMap || k.Inner != 0 && Target(v).Kind == yaml.MappingNode:
		if r.IsNull(v) || !r.isMapping(k.Name, v) {
			return fields
		}
		f.At, f.N, f.Fields = At(v), 1, r.fields(v, k.Inner)
		return append(fields, f)
	case k.Kind == KindNumber:
		f.N, f.At = r.number(k, v)
	case k.Kind == KindFlag, k.Kind == KindSwitch:
		f.N, f.At = r.flag(k, v)
	default:
		f.Text = r.Text(k, v)
	}
	if r.Failures > before {
		f.At, f.Broken = At(v), true
	}
	if !f.At.Present() || k.Kind == KindSwitch && !f.On() {
		return fields
	}
	return append(fields, f)
}

// fields reads the keys of a map. The result is not nil.
func (r *Reader) fields(n *yaml.Node, where Place) Fields {
	fields := Fields{}
	r.Mapping(n, where, func(k *Keyword, v *yaml.Node) { fields = r.Field(fields, k, v) })
	return fields
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
		name := r.fields(item, InReplaces).Get(KeyName).Text
		name.At = name.Or(At(item))
		out = append(out, name)
	}
	return out
}

// plans reads plans, whose keys are the plans' names.
func (r *Reader) plans(n *yaml.Node, d *Descriptor) {
	d.Plans, d.PlansAt = nil, Mark{}
	if r.IsNull(n) || !r.isMapping(KeyPlans, n) {
		return
	}
	d.PlansAt = At(n)
	r.pairs(n, false, func(p pair) {
		k := Target(p.key)
		switch {
		case len(d.Plans) > MaxPlans:
			return
		case k.Kind != yaml.ScalarNode || resolve(k).kind != kindString || !r.plainTag(k):
			r.Fail(At(p.key), r.Path(), "config error, key is not of type string: %s", brief(k))
			return
		}
		read := r.plan(p.value)
		read.Name = Text{Value: k.Value, At: At(p.key)}
		same := func(o Plan) bool { return o.Name.Value == k.Value }
		if slices.ContainsFunc(d.Plans, same) {
			r.Warn(At(p.key), r.Path(), "the plan '%s' is repeated: the last one wins", plain.Shorten(k.Value))
			d.Plans = slices.DeleteFunc(d.Plans, same)
		}
		d.Plans = append(d.Plans, read)
	})
}

// plan reads a plan: a limit or a list of limits.
func (r *Reader) plan(n *yaml.Node) Plan {
	p := Plan{At: At(n)}
	switch t := Target(n); {
	case t.Kind == yaml.SequenceNode:
		p.Listed, p.Limits = true, r.items("a plan", n)
	case r.isMapping("a plan", n):
		p.Limit = &Limit{At: At(n)}
		r.limit(n, InLimit, p.Limit)
	}
	return p
}

// Source reads a source, from either Root or the first document of Data. The result is incomplete if it reports an error.
func (r *Reader) Source(s *Source) File {
	if s.Root != nil {
		r.visits, r.paths, r.open = math.MaxInt, freePaths+4*len(s.Data), map[*yaml.Node]struct{}{}
		return r.File(s.Root)
	}
	root := r.Document(s.Data)
	if root == nil {
		return File{}
	}
	defer collect(s.Data)
	return r.File(root)
}
