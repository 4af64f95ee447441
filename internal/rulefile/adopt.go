package rulefile

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// What comes as values rather than as YAML, such as from a control plane, is put into a [File] by its source. Its marks are all
// [Somewhere]. All checks are the same.

// Somewhere returns the mark of everything present in a source without lines.
func Somewhere() Mark { return Mark{Line: -1} }

// Here returns a text that is present, even if it is empty.
func Here(s string) Text { return Text{Value: s, At: Somewhere()} }

// Given returns a text that is absent if it is empty.
func Given(s string) Text {
	if s == "" {
		return Text{}
	}
	return Here(s)
}

// Raised returns a flag that is absent if it is false.
func Raised(on bool) Flag {
	if !on {
		return Flag{}
	}
	return Flag{On: true, At: Somewhere()}
}

// Counted returns a number that is absent if n is nil.
func Counted(n *uint32) Number {
	if n == nil {
		return Number{}
	}
	return Number{N: uint64(*n), At: Somewhere()}
}

// OwnOf returns one of our own keys of a limit, whose value is a uint32, a bool or a string. An empty string is absent.
func OwnOf(key string, v any) Own {
	own := Own{Key: key}
	switch v := v.(type) {
	case uint32:
		own.Text, own.N = Here(""), uint64(v)
	case bool:
		own.Text = Here("")
		if v {
			own.N = 1
		}
	case string:
		own.Text = Given(v)
	}
	return own
}

// adopt returns a copy of f, as reading returns it: f stays as it is. Parts that are too large are reported and left out.
func (r *Reader) adopt(f *File) File {
	r.Trail = []Step{{Key: f.Domain.Value}}
	out := *f
	out.Descriptors = r.adoptAll(f.Descriptors)
	return out
}

func (r *Reader) adoptAll(all []Descriptor) []Descriptor {
	if len(all) > 0 && r.tooDeep(Somewhere()) {
		return nil
	}
	all = slices.Clone(all)
	for i := range all {
		d := &all[i]
		r.Trail = append(r.Trail, Step{d.Key.Value, d.Value.Value})
		d.Limit, d.Limits, d.Policy = d.Limit.clone(), cloneAll(d.Limits), d.Policy.clone()
		if d.LimitsAt.Present() && !r.CountOK(KeyRateLimits, len(d.Limits), d.LimitsAt) {
			d.Limits = nil
		}
		d.Plans = slices.Clone(d.Plans)
		for j := range d.Plans {
			r.adoptPlan(&d.Plans[j])
		}
		slices.SortFunc(d.Plans, func(a, b Plan) int { return cmp.Compare(a.Name.Value, b.Name.Value) })
		d.Children = r.adoptAll(d.Children)
		r.Trail = r.Trail[:len(r.Trail)-1]
	}
	return all
}

func (r *Reader) adoptPlan(p *Plan) {
	p.Limit, p.Limits = p.Limit.clone(), cloneAll(p.Limits)
	switch {
	case p.Limit != nil && len(p.Limits) > 0:
		r.Fail(p.At, r.Path(), "the plan '%s' has rate_limit and rate_limits: want one of them", plain.Shorten(p.Name.Value))
		p.Limit, p.Limits = nil, nil
	case p.Limit == nil:
		if p.Listed = r.CountOK("a plan", len(p.Limits), p.At); !p.Listed {
			p.Limits = nil
		}
	}
}

func (l *Limit) clone() *Limit {
	if l == nil {
		return nil
	}
	out := *l
	out.Owns, out.Policy = slices.Clone(l.Owns), l.Policy.clone()
	return &out
}

func cloneAll(limits []Limit) []Limit {
	limits = slices.Clone(limits)
	for i := range limits {
		limits[i] = *limits[i].clone()
	}
	return limits
}

func (p *Policy) clone() *Policy {
	if p == nil {
		return nil
	}
	out := *p
	return &out
}
