package descriptors

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
)

// What an overlay says is checked with the rules that it is laid over. What is laid over none would be wrong only once such a rule
// comes, and would have that rule rejected; so it is tried on rules that might come, and an error that it makes with each of
// them is one now. What one of them takes may still not go with the rules that do come.

// mostWrong bounds how many descriptors of an overlay are found to be wrong in this way.
const mostWrong = 20

// dryRun returns the errors of what an overlay lays over no rule.
func dryRun(o *overlay.Overlay, options Options) (out Problems) {
	options.Strict = false
	wrong := 0
	for _, p := range o.Unmet() {
		found := wrongAlways(o, p, options)
		out = append(out, found...)
		if wrong += min(1, len(found)); wrong == mostWrong {
			break
		}
	}
	return out
}

// wrongAlways returns the errors that p makes with every rule.
func wrongAlways(o *overlay.Overlay, p *overlay.Pattern, options Options) (always Problems) {
	first := true
	for f, r := range o.Samples(p) {
		c := compiler{Report: r, set: &Set{byName: map[string]*Domain{}}, options: options, zones: zones{}}
		c.file(f)
		var found Problems
		for _, q := range c.Problems {
			if !q.Warning && q.File != "" {
				q.Path = p.Path
				found = append(found, q)
			}
		}
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
