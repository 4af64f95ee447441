package rulefile

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

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

// Somewhere returns the mark of everything present in a source without lines.
func Somewhere() Mark { return Mark{Line: -1} }

// tree turns a Tree into raw structs.
func (r *Reader) tree(t *Tree) File {
	r.Trail = []Step{{Key: t.Domain}}
	f := File{
		Domain:      Text{Value: t.Domain, At: Somewhere()},
		Charge:      given(t.Charge),
		Descriptors: r.treeNodes(t.Descriptors),
	}
	for _, key := range t.QuotaGroupBy {
		f.GroupBy, f.GroupByAt = append(f.GroupBy, Text{Value: key, At: Somewhere()}), Somewhere()
	}
	if t.AllowLimitOverride != nil {
		f.Override = Flag{On: *t.AllowLimitOverride, At: Somewhere()}
	}
	return f
}

func (r *Reader) treeNodes(nodes []TreeNode) []Descriptor {
	if len(nodes) > 0 && r.TooDeep(Somewhere()) {
		return nil
	}
	out := make([]Descriptor, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		r.Trail = append(r.Trail, Step{n.Key, n.Value})
		r.treeNode(n, &out[i])
		r.Trail = r.Trail[:len(r.Trail)-1]
	}
	return out
}

func (r *Reader) treeNode(n *TreeNode, d *Descriptor) {
	*d = Descriptor{
		At:  Somewhere(),
		Key: Text{Value: n.Key, At: Somewhere()}, Value: given(n.Value),
		Policy:        n.Policy.raw(),
		PlanOf:        given(n.PlanOf),
		Shadow:        raised(n.ShadowMode),
		Quota:         raised(n.QuotaMode),
		Detailed:      raised(n.DetailedMetric),
		ValueToMetric: raised(n.ValueToMetric),
		Share:         raised(n.ShareThreshold),
	}
	if n.RateLimit != nil {
		d.Limit = n.RateLimit.raw()
	}
	if len(n.RateLimits) > 0 {
		d.LimitsAt = Somewhere()
		if r.CountOK(KeyRateLimits, len(n.RateLimits), Somewhere()) {
			for i := range n.RateLimits {
				d.Limits = append(d.Limits, *n.RateLimits[i].raw())
			}
		}
	}
	r.treePlans(n, d)
	if n.Metadata != nil {
		d.Metadata, d.MetadataAt = n.Metadata, Somewhere()
	}
	d.Children = r.treeNodes(n.Descriptors)
}

func (l *TreeLimit) raw() *Limit {
	out := &Limit{
		At:        Somewhere(),
		Unit:      given(l.Unit),
		Requests:  Number{N: uint64(l.RequestsPerUnit), At: Somewhere()},
		Unlimited: raised(l.Unlimited),
		Name:      given(l.Name),
		Policy:    l.Policy.raw(),
	}
	for _, name := range l.Replaces {
		out.Replaces = append(out.Replaces, Text{Value: name, At: Somewhere()})
	}
	for k := range OwnKeys() {
		own := Own{Key: k}
		switch v := l.Own[k].(type) {
		case uint32:
			own.N, own.At = uint64(v), Somewhere()
		case bool:
			own.At = Somewhere()
			if v {
				own.N = 1
			}
		case string:
			own.Text = given(v)
		}
		if own.At.Present() {
			out.Owns = append(out.Owns, own)
		}
	}
	return out
}

func (p *TreePolicy) raw() *Policy {
	out := Policy{OnFailure: given(p.OnFailure), Holder: given(p.Holder), Lease: given(p.Lease), Headers: given(p.Headers)}
	if q := p.Penalty; q != nil {
		out.PenaltyAt = Somewhere()
		out.Penalty = Penalty{Duration: given(q.For), On: given(q.On), Max: given(q.Max), Escalate: counted(q.Escalate)}
	}
	if q := p.Reserve; q != nil {
		out.ReserveAt = Somewhere()
		out.Reserve = Reserve{TTL: given(q.TTL), OnExpiry: given(q.OnExpiry), Entry: given(q.Entry), Estimate: counted(q.Estimate)}
	}
	if len(out.Written()) == 0 {
		return nil
	}
	return &out
}

func given(s string) Text {
	if s == "" {
		return Text{}
	}
	return Text{Value: s, At: Somewhere()}
}

func raised(on bool) Flag {
	if !on {
		return Flag{}
	}
	return Flag{On: true, At: Somewhere()}
}

func counted(n *uint32) Number {
	if n == nil {
		return Number{}
	}
	return Number{N: uint64(*n), At: Somewhere()}
}

// TreePlan is a plan of a [TreeNode]: one limit, or a list.
type TreePlan struct {
	Name       string
	RateLimit  *TreeLimit
	RateLimits []TreeLimit
}

func (r *Reader) treePlans(n *TreeNode, d *Descriptor) {
	for i := range n.Plans {
		d.PlansAt = Somewhere()
		t := &n.Plans[i]
		p := Plan{Name: Text{Value: t.Name, At: Somewhere()}, At: Somewhere()}
		switch {
		case t.RateLimit != nil && len(t.RateLimits) > 0:
			r.Fail(p.At, r.Path(), "the plan '%s' has rate_limit and rate_limits: want one of them", plain.Shorten(t.Name))
		case t.RateLimit != nil:
			p.Limit = t.RateLimit.raw()
		case r.CountOK("a plan", len(t.RateLimits), p.At):
			p.Listed = true
			for j := range t.RateLimits {
				p.Limits = append(p.Limits, *t.RateLimits[j].raw())
			}
		}
		d.Plans = append(d.Plans, p)
	}
	slices.SortFunc(d.Plans, func(a, b Plan) int { return cmp.Compare(a.Name.Value, b.Name.Value) })
}
