package descriptors

// Tree is what a source says where it comes as values and not as YAML, as from a control plane. Its fields are the keys of
// a file of rules, and mean what these mean; all checks are the same. An empty text, a false flag and a nil pointer are
// keys that are not there. A Tree is not changed, and must not be changed while it is read.
type Tree struct {
	Domain             string
	Charge             string
	AllowLimitOverride *bool
	Descriptors        []TreeNode
}

// TreeNode is a descriptor of a [Tree].
type TreeNode struct {
	Key, Value     string
	Descriptors    []TreeNode
	RateLimit      *TreeLimit
	RateLimits     []TreeLimit
	Policy         TreePolicy // beside rate_limits
	ShadowMode     bool
	QuotaMode      bool
	DetailedMetric bool
	ValueToMetric  bool
	ShareThreshold bool
	Metadata       map[string]any // what structpb.Struct.AsMap makes; nil is none
}

// TreeLimit is rate_limit, or an item of rate_limits, of a [Tree].
type TreeLimit struct {
	Unit            string
	RequestsPerUnit uint32
	Unlimited       bool
	Name            string
	Replaces        []string
	Policy          TreePolicy // inside rate_limit

	Algorithm, Align, FillInterval, Timezone        string
	UnitMultiplier, Burst, Precision, Debt, Initial *uint32
	Calendar, CountRefused                          *bool
}

// TreePolicy is the keys of a [Tree] that belong to a descriptor.
type TreePolicy struct {
	OnFailure, Holder, Lease string
	Penalty                  *TreePenalty
}

// TreePenalty is a penalty of a [Tree].
type TreePenalty struct {
	For, On, Max string
	Escalate     *uint32
}

// somewhere is the mark of all that stands in a source that has no lines.
func somewhere() mark { return mark{line: -1} }

// tree turns typed values into raw structs.
func (r *reader) tree(t *Tree) rawFile {
	r.trail = []step{{key: t.Domain}}
	f := rawFile{
		domain:      text{s: t.Domain, at: somewhere()},
		charge:      given(t.Charge),
		descriptors: r.treeNodes(t.Descriptors),
	}
	if t.AllowLimitOverride != nil {
		f.override = flag{on: *t.AllowLimitOverride, at: somewhere()}
	}
	return f
}

func (r *reader) treeNodes(nodes []TreeNode) []rawDescriptor {
	if len(nodes) > 0 && r.tooDeep(somewhere()) {
		return nil
	}
	out := make([]rawDescriptor, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		r.trail = append(r.trail, step{n.Key, n.Value})
		r.treeNode(n, &out[i])
		r.trail = r.trail[:len(r.trail)-1]
	}
	return out
}

func (r *reader) treeNode(n *TreeNode, d *rawDescriptor) {
	*d = rawDescriptor{
		at:  somewhere(),
		key: text{s: n.Key, at: somewhere()}, value: given(n.Value),
		policy:        n.Policy.raw(),
		shadow:        raised(n.ShadowMode),
		quota:         raised(n.QuotaMode),
		detailed:      raised(n.DetailedMetric),
		valueToMetric: raised(n.ValueToMetric),
		share:         raised(n.ShareThreshold),
	}
	if n.RateLimit != nil {
		d.limit = n.RateLimit.raw()
	}
	if len(n.RateLimits) > 0 {
		d.limitsAt = somewhere()
		if r.countOK(len(n.RateLimits), somewhere()) {
			for i := range n.RateLimits {
				d.limits = append(d.limits, *n.RateLimits[i].raw())
			}
		}
	}
	if n.Metadata != nil {
		d.metadata, d.metadataAt = n.Metadata, somewhere()
	}
	d.children = r.treeNodes(n.Descriptors)
}

func (l *TreeLimit) raw() *rawLimit {
	out := &rawLimit{
		at:        somewhere(),
		unit:      given(l.Unit),
		requests:  number{n: uint64(l.RequestsPerUnit), at: somewhere()},
		unlimited: raised(l.Unlimited),
		name:      given(l.Name),
		policy:    l.Policy.raw(),
	}
	for _, name := range l.Replaces {
		out.replaces = append(out.replaces, text{s: name, at: somewhere()})
	}
	e := rawEngine{
		algorithm: given(l.Algorithm), align: given(l.Align), fillInterval: given(l.FillInterval), timezone: given(l.Timezone),
		multiplier: counted(l.UnitMultiplier), burst: counted(l.Burst), precision: counted(l.Precision),
		debt: counted(l.Debt), initial: counted(l.Initial),
	}
	if l.Calendar != nil {
		e.calendar = flag{on: *l.Calendar, at: somewhere()}
	}
	if l.CountRefused != nil {
		e.countRefused = flag{on: *l.CountRefused, at: somewhere()}
	}
	if len(e.written()) > 0 {
		out.engine = &e
	}
	return out
}

func (p *TreePolicy) raw() *rawPolicy {
	out := rawPolicy{onFailure: given(p.OnFailure), holder: given(p.Holder), lease: given(p.Lease)}
	if q := p.Penalty; q != nil {
		out.penaltyAt = somewhere()
		out.penalty = rawPenalty{duration: given(q.For), on: given(q.On), max: given(q.Max), escalate: counted(q.Escalate)}
	}
	if len(out.written()) == 0 {
		return nil
	}
	return &out
}

func given(s string) text {
	if s == "" {
		return text{}
	}
	return text{s: s, at: somewhere()}
}

func raised(on bool) flag {
	if !on {
		return flag{}
	}
	return flag{on: true, at: somewhere()}
}

func counted(n *uint32) number {
	if n == nil {
		return number{}
	}
	return number{n: uint64(*n), at: somewhere()}
}
