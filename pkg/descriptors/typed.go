package descriptors

// Tree is the contents of a source that comes as values rather than as YAML, such as from a control plane. Its fields
// are the keys of a rules file and have the same meaning; all checks are the same. An empty string, a false flag and a
// nil pointer stand for absent keys. Load does not change a Tree, and nobody else may while Load runs.
type Tree struct {
	Domain             string
	Charge             string
	AllowLimitOverride *bool
	QuotaGroupBy       []string // none is an absent key
	Descriptors        []TreeNode
}

// TreeNode is a descriptor of a [Tree].
type TreeNode struct {
	Key, Value     string
	Descriptors    []TreeNode
	RateLimit      *TreeLimit
	RateLimits     []TreeLimit
	Policy         TreePolicy // beside rate_limits
	PlanOf         string
	Plans          []TreePlan // in any order, each name once
	ShadowMode     bool
	QuotaMode      bool
	DetailedMetric bool
	ValueToMetric  bool
	ShareThreshold bool
	Metadata       map[string]any // in the form that structpb.Struct.AsMap returns; nil if there is none
}

// TreeLimit is rate_limit, or an item of rate_limits, of a [Tree].
type TreeLimit struct {
	Unit            string
	RequestsPerUnit uint32
	Unlimited       bool
	Name            string
	Replaces        []string
	Policy          TreePolicy // inside rate_limit

	// Our own keys, such as burst, each with a uint32, a bool or a string.
	Own map[string]any
}

// TreePolicy is the keys of a [Tree] that belong to a descriptor as a whole.
type TreePolicy struct {
	OnFailure, Holder, Lease, Headers string
	Penalty                           *TreePenalty
	Reserve                           *TreeReserve // inside rate_limit
}

// TreeReserve is the reserve of a limit of a [Tree].
type TreeReserve struct {
	TTL, OnExpiry, Entry string
	Estimate             *uint32
}

// TreePenalty is a penalty of a [Tree].
type TreePenalty struct {
	For, On, Max string
	Escalate     *uint32
}

// somewhere returns the mark of everything present in a source without lines.
func somewhere() mark { return mark{line: -1} }

// tree turns a Tree into raw structs.
func (r *reader) tree(t *Tree) rawFile {
	r.trail = []step{{key: t.Domain}}
	f := rawFile{
		domain:      text{s: t.Domain, at: somewhere()},
		charge:      given(t.Charge),
		descriptors: r.treeNodes(t.Descriptors),
	}
	for _, key := range t.QuotaGroupBy {
		f.groupBy, f.groupByAt = append(f.groupBy, text{s: key, at: somewhere()}), somewhere()
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
		planOf:        given(n.PlanOf),
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
		if r.countOK(kwRateLimits, len(n.RateLimits), somewhere()) {
			for i := range n.RateLimits {
				d.limits = append(d.limits, *n.RateLimits[i].raw())
			}
		}
	}
	r.treePlans(n, d)
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
	for k := range OwnKeys() {
		own := ownKey{k: k}
		switch v := l.Own[k].(type) {
		case uint32:
			own.n, own.at = uint64(v), somewhere()
		case bool:
			own.at = somewhere()
			if v {
				own.n = 1
			}
		case string:
			own.text = given(v)
		}
		if own.at.present() {
			out.owns = append(out.owns, own)
		}
	}
	return out
}

func (p *TreePolicy) raw() *rawPolicy {
	out := rawPolicy{onFailure: given(p.OnFailure), holder: given(p.Holder), lease: given(p.Lease), headers: given(p.Headers)}
	if q := p.Penalty; q != nil {
		out.penaltyAt = somewhere()
		out.penalty = rawPenalty{duration: given(q.For), on: given(q.On), max: given(q.Max), escalate: counted(q.Escalate)}
	}
	if q := p.Reserve; q != nil {
		out.reserveAt = somewhere()
		out.reserve = rawReserve{ttl: given(q.TTL), onExpiry: given(q.OnExpiry), entry: given(q.Entry), estimate: counted(q.Estimate)}
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
