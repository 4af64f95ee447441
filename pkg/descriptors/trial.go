package descriptors

import (
	"iter"
	"slices"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// What an overlay says is checked with the rules that it is laid over. What is laid over none would be wrong only once such a rule
// comes, and would have that rule refused; so it is tried on rules that might come, and an error that it makes with each of
// them is one now. What one of them takes may still not go with the rules that do come.

// mostTrials bounds how many descriptors of an overlay are found to be wrong in this way.
const mostTrials = 20

// trials returns the errors of what the overlay lays over no rule.
func (o *overlay) trials(options Options) (out Problems) {
	if o.failed {
		return nil
	}
	wrong := 0
	for _, p := range o.all {
		if p.met > 0 {
			continue
		}
		found := o.trial(p, &options)
		out = append(out, found...)
		if wrong += min(1, len(found)); wrong == mostTrials {
			break
		}
	}
	return out
}

// trial returns the errors that p makes with every rule.
func (o *overlay) trial(p *pattern, options *Options) (always Problems) {
	first := true
	for f := range p.candidates() {
		found := o.compiled(p, f, options)
		if first {
			always, first = found, false
		}
		always = slices.DeleteFunc(always, func(a Problem) bool { return !slices.Contains(found, a) })
		if len(always) == 0 {
			return nil
		}
	}
	return always
}

// compiled returns the errors about the overlay that laying p over the last descriptor of f makes.
func (o *overlay) compiled(p *pattern, f rawFile, options *Options) (out Problems) {
	r := &reader{report: report{overlays: o.files}, grammar: o.hand.grammar}
	if len(p.trail) == 1 {
		o.hand.root(p.node(nil), &f)
	} else {
		last := &f.descriptors
		for len((*last)[0].children) > 0 {
			last = &(*last)[0].children
		}
		o.put(p, &(*last)[0], r)
	}
	o.hand.report = report{overlays: o.files}
	c := compiler{report: &r.report, set: &Set{byName: map[string]*Domain{}}, options: *options, zones: zones{}}
	c.options.Strict = false
	c.file(&f)
	for _, q := range c.problems {
		if !q.Warning && q.File != "" {
			q.Path = p.path
			out = append(out, q)
		}
	}
	return out
}

// candidates yields files with a rule on the path of p: one for each kind of rule that makes a difference to the keys of an overlay.
func (p *pattern) candidates() iter.Seq[rawFile] {
	named, values := p.named(), []string{""}
	if p.deep {
		values = append(values, "*")
	}
	var paths [][]step
	for _, name := range append([]string{""}, named...) {
		for _, value := range values {
			paths = append(paths, p.steps(name, value, named))
		}
	}
	return func(yield func(rawFile) bool) {
		for l := range usualLimits() {
			for _, path := range paths {
				for _, f := range p.shapes(path, l) {
					if !yield(f) {
						return
					}
				}
			}
		}
	}
}

// usualLimits yields a limit of each algorithm and each unit, without a flag and with each, those that take most first.
func usualLimits() iter.Seq[rawLimit] {
	own := func(k, s string, n uint64) ownKey { return ownKey{k, value{text: text{s: s, at: somewhere()}, n: n}} }
	flags := []string{""}
	for p := range engine.Parameters() {
		if p.Kind() == engine.KindFlag {
			flags = append(flags, p.String())
		}
	}
	return func(yield func(rawLimit) bool) {
		for i := range 3 * int(Week) * len(flags) {
			hits := []uint64{1<<32 - 1, 1000, 1}[i/len(flags)/int(Week)]
			u, flag := Second+Unit(i/len(flags)%int(Week)), flags[i%len(flags)]
			for a := range engine.Algorithms() {
				l := rawLimit{at: somewhere(), unit: text{s: u.String(), at: somewhere()}, requests: number{hits, somewhere()}}
				l.owns = []ownKey{own(kwAlgorithm, a.String(), 0)}
				if flag != "" {
					l.owns = append(l.owns, own(flag, "true", 1))
				}
				if !yield(l) {
					return
				}
			}
		}
	}
}

// shapes returns files with a limit at the end of a path: alone, in a list, and as a plan.
func (p *pattern) shapes(path []step, l rawLimit) (all []rawFile) {
	if len(path) == 0 { // a domain, whose keys are about no rule
		return []rawFile{{domain: text{s: p.trail[0].key, at: somewhere()}}}
	}
	copied := func() *rawLimit {
		c := l
		c.owns = slices.Clone(l.owns)
		return &c
	}
	last := []rawDescriptor{
		{limit: copied()},
		{limitsAt: somewhere(), limits: []rawLimit{*copied()}},
		{
			planOf: text{s: path[0].key, at: somewhere()}, plansAt: somewhere(),
			plans: []rawPlan{{name: text{s: DefaultPlan, at: somewhere()}, at: somewhere(), limit: copied()}},
		},
	}
	for _, d := range last {
		for i, s := range slices.Backward(path) {
			d.at, d.key = somewhere(), text{s: s.key, at: somewhere()}
			if s.value != "" {
				d.value = text{s: s.value, at: somewhere()}
			}
			if i > 0 {
				d = rawDescriptor{children: []rawDescriptor{d}}
			}
		}
		all = append(all, rawFile{domain: text{s: p.trail[0].key, at: somewhere()}, descriptors: []rawDescriptor{d}})
	}
	return all
}

// steps returns a path that p fits, where each key with a * is the name, if it fits. Any number of descriptors is one for each of
// all names, and one more.
func (p *pattern) steps(name, value string, named []string) (path []step) {
	for i, s := range p.trail[1:] {
		if p.deep && i == len(p.trail)-2 {
			for _, n := range named {
				path = append(path, step{n, ""})
			}
			return append(path, step{"x", value})
		}
		if g := newGlob(s.key); g != nil && name != "" && g.match([]byte(name)) {
			s.key = name
		}
		path = append(path, s)
	}
	return path
}

// named returns the keys of descriptors that p names in holder and plan_of.
func (p *pattern) named() (all []string) {
	var find func(k string, n *yaml.Node, deep int)
	find = func(k string, n *yaml.Node, deep int) {
		n = target(n)
		if n.Kind == yaml.ScalarNode && (k == kwHolder || k == kwPlanOf) && n.Value != "" && !slices.Contains(all, n.Value) && len(all) < 4 {
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
