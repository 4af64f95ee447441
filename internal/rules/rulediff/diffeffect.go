package rulediff

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// canReject reports whether a rule, which may be nil, can reject requests.
func canReject(r *descriptors.Rule) bool { return r != nil && !r.Unlimited && !r.Shadow }

// effect returns the effect of replacing was by r; either may be nil.
func effect(r, was *descriptors.Rule) Effect {
	switch {
	case !canReject(was):
		return Other
	case !canReject(r), losesRLQS(r, was), r.Quota && !was.Quota, r.RateLimits.Len() < was.RateLimits.Len(),
		r.OnFailure == descriptors.FailAllow && was.OnFailure != descriptors.FailAllow:
		return Opens
	case raises(r, was):
		return Raises
	}
	return Other
}

// unassigned explains why removing rlqs opens a limit.
const unassigned = "Envoys get no assignment and follow no_assignment_behavior, which allows by default"

// losesRLQS reports whether was has rlqs, and r, which may be nil, does not.
func losesRLQS(r, was *descriptors.Rule) bool { return was.RLQS != nil && (r == nil || r.RLQS == nil) }

// raises reports whether a limit of r has a higher rate than the limit at the same position in was.
func raises(r, was *descriptors.Rule) bool {
	limits, were := r.RateLimits.Limits(), was.RateLimits.Limits()
	for i := range min(len(limits), len(were)) {
		now, before := &limits[i], &were[i]
		high, low := bits.Mul64(now.Hits, uint64(before.Window))
		highBefore, lowBefore := bits.Mul64(before.Hits, uint64(now.Window))
		if high > highBefore || high == highBefore && low > lowBefore {
			return true
		}
	}
	return false
}

// countersSince returns the effect on the counters of was. Counters are kept if their names stay the same: the name of the
// descriptor, which omits values for a shared threshold or a holder, and the name of the limit's state.
func countersSince(r, was *descriptors.Rule) Counters {
	slots := func(r *descriptors.Rule) (all []engine.Slot) {
		for _, l := range r.RateLimits.Limits() {
			all = append(all, l.Slot())
		}
		return all
	}
	now, before, kept := slots(r), slots(was), 0
	for _, slot := range now {
		if slices.Contains(before, slot) && r.SameNames(was) {
			kept++
		}
	}
	switch {
	case len(now) == 0 || len(before) == 0:
		return None
	case kept == len(now):
		return Kept
	case kept == 0:
		return Reset
	}
	return Partly
}

// maxCompared is the maximum number of compared pairs of wildcards. Beyond it, the diff is incomplete.
const maxCompared = 100_000

// reach reports remaining nodes that gain or lose descriptors because other nodes were added, removed, or reordered.
func (d *differ) reach(now, was *descriptors.Level, path string) { //nolint:gocognit // one pass for each way in which a node is reached
	if now == nil || was == nil {
		return
	}
	lost, won := map[*descriptors.Node][]string{}, map[*descriptors.Node][]string{}
	opened := map[*descriptors.Node]bool{}
	for _, n := range now.Nodes() {
		before := was.Same(n)
		switch {
		case n.IsWildcard():
			d.overtaken(n, before, was, now, func(w *descriptors.Node) {
				lost[w] = append(lost[w], "what fits "+entryText(n))
				opened[w] = opened[w] || opens(n, w)
			})
		case before == nil:
			if w := was.Find(entry(n)); w != nil && now.Same(w) != nil && n.Value != "" {
				lost[w] = append(lost[w], entryText(n))
				opened[w] = opened[w] || opens(n, w)
			}
		}
	}
	for _, n := range was.Nodes() {
		if now.Same(n) != nil || n.IsWildcard() || n.Value == "" {
			continue
		}
		if w := now.Find(entry(n)); w != nil {
			if before := was.Same(w); before != nil {
				won[before] = append(won[before], entryText(n))
			}
		}
	}
	for _, n := range was.Nodes() {
		c := Change{Path: path + "." + n.Label(), Kind: Reached, Effect: Other}
		if opened[n] {
			c.Effect = Opens
		}
		for _, r := range []struct {
			text string
			by   []string
		}{{"no longer reached by ", lost[n]}, {"now reached by ", won[n]}} {
			if len(r.by) > 0 {
				c.Text = r.text + few3(r.by)
				d.add(c)
			}
		}
	}
}

// overtaken calls visit for each node that the wildcard n newly precedes: wildcards, and the node of any value.
func (d *differ) overtaken(n, before *descriptors.Node, was, now *descriptors.Level, visit func(*descriptors.Node)) {
	for _, w := range was.Nodes() {
		if d.spent++; d.spent > maxCompared {
			return
		}
		still := now.Same(w)
		if still == nil || still == n {
			continue
		}
		bare := !w.IsWildcard() && w.Value == "" && before == nil
		passed := w.IsWildcard() && n.Order < still.Order && (before == nil || before.Order > w.Order)
		if (bare || passed) && overlaps(n.Key, w.Key) && (bare || overlaps(valuePattern(n), valuePattern(w))) {
			visit(w)
		}
	}
}

// opens reports whether moving descriptors from w to n opens a limit, because w can reject and n cannot.
func opens(n, w *descriptors.Node) bool { return canReject(w.Rule) && !canReject(n.Rule) }

func entry(n *descriptors.Node) *descriptors.Entry {
	return &descriptors.Entry{Key: []byte(n.Key), Value: []byte(n.Value)}
}

// entryText formats a node as an entry.
func entryText(n *descriptors.Node) string {
	if n.Value == "" {
		return plain.Quoted([]byte(n.Key))
	}
	return plain.Quoted([]byte(n.Key)) + "=" + plain.Quoted([]byte(n.Value))
}

// valuePattern returns the pattern of the node's values.
func valuePattern(n *descriptors.Node) string {
	if n.Value == "" {
		return "*"
	}
	return n.Value
}

// overlaps reports whether any text matches both patterns.
func overlaps(a, b string) bool {
	fits := make([]bool, len(b)+1) // whether the rest of a, initially empty, and b[j:] match a common text
	for i := len(a); i >= 0; i-- {
		next := slices.Clone(fits)
		for j := len(b); j >= 0; j-- {
			switch {
			case i == len(a) && j == len(b):
				fits[j] = true
			case j < len(b) && b[j] == '*':
				fits[j] = fits[j+1] || i < len(a) && (next[j] || a[i] == '*' && next[j])
			case i < len(a) && a[i] == '*':
				fits[j] = next[j] || j < len(b) && fits[j+1]
			case i < len(a) && j < len(b):
				fits[j] = a[i] == b[j] && next[j+1]
			default:
				fits[j] = false
			}
		}
	}
	return fits[0]
}

// few3 lists three of several texts: a, b, c and 4 others.
func few3(all []string) string {
	switch n := len(all); {
	case n == 1:
		return all[0]
	case n <= 3:
		return strings.Join(all[:n-1], ", ") + " and " + all[n-1]
	case n == 4:
		return strings.Join(all[:3], ", ") + " and another one"
	default:
		return fmt.Sprintf("%s and %d others", strings.Join(all[:3], ", "), n-3)
	}
}
