package descriptors

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// Step describes one step of a match for people.
type Step struct {
	Entry string // key=value
	Text  string // the match and its reason
	NoKey bool   // no rule has the entry's key at this level
}

// Explain describes the steps of Match: one for each entry until the search ends and, if all entries matched, a last one without an entry
// that describes the limit. Unlike Match, it allocates.
func (d *Domain) Explain(entries []Entry) []Step {
	var steps []Step
	l := &d.root
	var n *Node
	for i := range entries {
		e := &entries[i]
		step := Step{Entry: fmt.Sprintf("%s=%s", plain.Quoted(e.Key), plain.Quoted(e.Value))}
		if l == nil {
			step.Text, step.NoKey = fmt.Sprintf("%s has no descriptors below it, but the request has another entry: no limit", n.Label()), true
			return append(steps, step)
		}
		next := l.Find(e)
		step.Text, step.NoKey = l.reason(e, next), next == nil && l.strange(e.Key)
		steps = append(steps, step)
		if next == nil {
			return steps
		}
		n, l = next, next.Children
	}
	return append(steps, Step{Text: outcome(n, entries)})
}

// strange reports whether no node of the level matches key with any value.
func (l *Level) strange(key []byte) bool {
	return l.group(key) == nil && !slices.ContainsFunc(l.wild, func(n *Node) bool { return n.keyGlob.Match(key) })
}

// reason explains why Find returned n for e.
func (l *Level) reason(e *Entry, n *Node) string {
	switch {
	case len(e.Key) == 0:
		return "an empty key matches nothing: no limit"
	case !utf8.Valid(e.Key):
		return "the key is not UTF-8 and matches nothing: no limit"
	case n == nil && l.strange(e.Key):
		return fmt.Sprintf("no descriptor at this level has the key %s: no limit%s", plain.Quoted([]byte(plain.Shorten(string(e.Key)))), hint(string(e.Key), l.keys()))
	case n == nil:
		text := "no descriptor at this level has this key with this value, no wildcard matches it, and none has only the key: no limit"
		if g := l.group(e.Key); g != nil {
			return text + hint(string(e.Value), g.values())
		}
		return text + hint(string(e.Key), l.keys())
	case n.IsWildcard() && !n.spells(e):
		return fmt.Sprintf("no exact match; the first wildcard in the file that matches is %s", n.placed())
	case n.Value != "":
		return fmt.Sprintf("exact match of key and value: %s", n.placed())
	}
	return fmt.Sprintf("the key with any value: %s", n.placed())
}

// placed returns the node's label with its line, if any.
func (n *Node) placed() string {
	if n.at.Number() == 0 {
		return n.Label()
	}
	return fmt.Sprintf("%s (line %d)", n.Label(), n.at.Line)
}

// Below reports whether the matched node has descriptors below it.
func (m Match) Below() bool { return m.node != nil && m.node.Children != nil }

// Outcome describes the limit, or the reason why there is none, like the last step of [Domain.Explain] for a descriptor all of whose
// entries matched.
func (m Match) Outcome(entries []Entry) string {
	if m.Rule == nil {
		return outcome(m.node, entries)
	}
	return m.limited(entries)
}

// outcome describes the limit of n, which may be nil.
func outcome(n *Node, entries []Entry) string {
	switch {
	case n == nil:
		return "a descriptor without entries matches nothing: no limit"
	case n.Rule == nil && n.Children != nil:
		return fmt.Sprintf("%s has no limit of its own, only descriptors below it: no limit", n.Label())
	case n.Rule == nil:
		return fmt.Sprintf("%s has no limit: not limited", n.Label())
	}
	return Match{Rule: n.Rule, node: n}.limited(entries)
}

// limited describes the limit of the matched rule.
func (m Match) limited(entries []Entry) string {
	r := m.Rule
	if r.Unlimited {
		return fmt.Sprintf("%s (%s) is unlimited: never rejected%s", r.Path, r.Origin(), r.RateLimits.At(0).names())
	}
	text := fmt.Sprintf("limited by %s (%s): %s", r.Path, r.Origin(), r.text(RateLimit.InFull))
	if m.shares(entries) {
		text += "; all values of the wildcard share one counter"
	}
	if owner, ok := m.Holder(entries); ok {
		text += fmt.Sprintf("; the holder is %s=%s", r.Holder, plain.Quoted(owner))
	}
	return text
}
