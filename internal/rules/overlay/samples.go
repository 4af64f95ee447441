package overlay

import (
	"iter"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/glob"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Unmet returns the patterns that were laid over no rule.
func (o *Overlay) Unmet() (all []*Pattern) {
	for _, p := range o.all {
		if p.met == 0 && !o.failed {
			all = append(all, p)
		}
	}
	return all
}

// Samples yields files with a rule on the path of p and p laid over it, one for each kind of rule that makes a difference to the keys
// of an overlay, and what to report about them to.
func (o *Overlay) Samples(p *Pattern) iter.Seq2[*rulefile.File, *rulefile.Report] {
	return func(yield func(*rulefile.File, *rulefile.Report) bool) {
		for root := range p.candidates() {
			r := &rulefile.Reader{Report: rulefile.Report{Overlays: o.Files}, Grammar: o.silentReader.Grammar}
			f := o.silentReader.File(root)
			if len(p.trail) == 1 {
				o.silentReader.Root(p.node(nil), &f)
			} else {
				last := &f.Descriptors
				for len((*last)[0].Children) > 0 {
					last = &(*last)[0].Children
				}
				o.applyTo(p, &(*last)[0], r)
			}
			o.silentReader.Report = rulefile.Report{Overlays: o.Files}
			if !yield(&f, &r.Report) {
				return
			}
		}
	}
}

// candidates yields the files of Samples before p is laid over them.
func (p *Pattern) candidates() iter.Seq[*yaml.Node] {
	named, values := p.named(), []string{""}
	if p.deep {
		values = append(values, "*")
	}
	var paths [][]rulefile.Step
	for _, name := range append([]string{""}, named...) {
		for _, value := range values {
			paths = append(paths, p.steps(name, value, named))
		}
	}
	return func(yield func(*yaml.Node) bool) {
		for limit := range usualLimits() {
			for _, path := range paths {
				for _, f := range p.shapes(path, limit) {
					if !yield(rulefile.Value(f)) {
						return
					}
				}
			}
		}
	}
}

// object is a map of YAML.
type object = map[string]any

// usualLimits yields a limit of each algorithm and each unit, without a flag and with each, those that take most first.
func usualLimits() iter.Seq[object] {
	units, flags := rulefile.UnitWords(), []string{""}
	for p := range engine.Parameters() {
		if p.Kind() == engine.KindFlag {
			flags = append(flags, p.String())
		}
	}
	return func(yield func(object) bool) {
		for i := range 3 * len(units) * len(flags) {
			hits := []uint64{1<<32 - 1, 1000, 1}[i/len(flags)/len(units)]
			unit, flag := units[i/len(flags)%len(units)], flags[i%len(flags)]
			for a := range engine.Algorithms() {
				l := object{rulefile.KeyUnit: unit, rulefile.KeyRequestsPerUnit: hits, rulefile.KeyAlgorithm: a.String()}
				if flag != "" {
					l[flag] = true
				}
				if !yield(l) {
					return
				}
			}
		}
	}
}

// shapes returns files with a limit at the end of a path: alone, in a list, and as a plan.
func (p *Pattern) shapes(path []rulefile.Step, limit object) (all []object) {
	domain := p.trail[0].Key
	if len(path) == 0 { // a domain, whose keys are about no rule
		return []object{{rulefile.KeyDomain: domain}}
	}
	for _, d := range []object{
		{rulefile.KeyRateLimit: limit},
		{rulefile.KeyRateLimits: []any{limit}},
		{rulefile.KeyPlanOf: path[0].Key, rulefile.KeyPlans: object{rulefile.DefaultPlan: limit}},
	} {
		for i, s := range slices.Backward(path) {
			if d[rulefile.KeyKey] = s.Key; s.Value != "" {
				d[rulefile.KeyValue] = s.Value
			}
			if i > 0 {
				d = object{rulefile.KeyDescriptors: []any{d}}
			}
		}
		all = append(all, object{rulefile.KeyDomain: domain, rulefile.KeyDescriptors: []any{d}})
	}
	return all
}

// steps returns a path that p fits, where each key with a * is the name, if it fits. Any number of descriptors is one for each of
// all names, and one more.
func (p *Pattern) steps(name, value string, named []string) (path []rulefile.Step) {
	for i, s := range p.trail[1:] {
		if p.deep && i == len(p.trail)-2 {
			for _, n := range named {
				path = append(path, rulefile.Step{Key: n, Value: ""})
			}
			return append(path, rulefile.Step{Key: "x", Value: value})
		}
		if g := glob.New(s.Key); g != nil && name != "" && g.Match([]byte(name)) {
			s.Key = name
		}
		path = append(path, s)
	}
	return path
}

// named returns the keys of descriptors that p names in holder and plan_of.
func (p *Pattern) named() (all []string) {
	var find func(k string, n *yaml.Node, deep int)
	find = func(k string, n *yaml.Node, deep int) {
		n = rulefile.Target(n)
		names := n.Kind == yaml.ScalarNode && (k == rulefile.KeyHolder || k == rulefile.KeyPlanOf) && n.Value != ""
		if names && !slices.Contains(all, n.Value) && len(all) < 4 {
			all = append(all, n.Value)
		}
		for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content) && deep < 3; i += 2 {
			find(n.Content[i].Value, n.Content[i+1], deep+1)
		}
	}
	for _, l := range p.keys {
		find(l.k, l.v, 0)
	}
	return all
}
