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

// canReject reports whether the rule, which may be nil, can reject a request.
func canReject(r *descriptors.Rule) bool { return r != nil && !r.Unlimited && !r.Shadow }

// effect returns what becomes of the limit of a node when was becomes r; both may be nil.
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

// unassigned is why a rule that loses rlqs opens.
const unassigned = "Envoys get no assignment and follow no_assignment_behavior, which allows by default"

// losesRLQS reports whether was has rlqs, and r, which may be nil, does not.
func losesRLQS(r, was *descriptors.Rule) bool { return was.RLQS != nil && (r == nil || r.RLQS == nil) }

// raises reports whether a limit of r admits more than that of the same algorithm and window, or than any, of was.
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

// countersSince says what becomes of the counters of was. They are kept as long as the names stay: that of the descriptor,
// in which a shared threshold and a holder leave values out, and that of the limit's state.
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

// maxCompared bounds how many pairs of wildcards a diff compares; it says less of further ones.
const maxCompared = 100_000

// reach reports the nodes that are still there, and which other descriptors reach, or reach no longer, because nodes were
// added, removed or put in another order.
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

// overtaken calls visit for each wildcard, and for the node of any value, that n, a wildcard, now comes before, and did not.
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

// opens reports whether descriptors that led to w, which canReject some, lead to n, which never does.
func opens(n, w *descriptors.Node) bool { return canReject(w.Rule) && !canReject(n.Rule) }

func entry(n *descriptors.Node) *descriptors.Entry {
	return &descriptors.Entry{Key: []byte(n.Key), Value: []byte(n.Value)}
}

// entryText returns the node as an entry of a request.
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

// overlaps reports whether a text fits both patterns.
func overlaps(a, b string) bool {
	fits := make([]bool, len(b)+1) // whether the rest of a, so far none, and b from here on have a text in common
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

// few3 lists the first three of several: a, b, c and 4 others.
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
