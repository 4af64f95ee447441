package descriptors

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Lint warns about rules that can be served, but hardly mean what their author had in mind.

// limitRef is a name of a limit, and where it stands.
type limitRef struct {
	report *rulefile.Report
	domain *Domain
	name   rulefile.Text
	path   string
}

func (c *compiler) ref(name rulefile.Text, path string) limitRef {
	return limitRef{report: c.Report, domain: c.domain, name: name, path: path}
}

// unknownReplaced reports names that limits replace although no limit of the domain has them. It waits for all sources,
// which may be parts of one domain, and says nothing if parts of them could not be read.
func (c *compiler) unknownReplaced() {
	if c.incomplete {
		return
	}
	type named struct{ domain, name string }
	known := map[named]bool{}
	for _, n := range c.named {
		known[named{n.domain.Name, n.name.Value}] = true
	}
	for _, n := range c.replaced {
		if !known[named{n.domain.Name, n.name.Value}] {
			n.report.Warn(n.name.At, n.path,
				"replaces '%s' has no effect: no limit of the domain %s has this name", plain.Shorten(n.name.Value), plain.Shorten(n.domain.Name))
		}
	}
}

// What a text looks like that was not meant to be compared as it is.
var (
	expression = regexp.MustCompile(`^\^|.\$$|\\[dwsDWS.]|/\.[*+]|\)[*+?]|\][+?]|\(\?`)
	template   = regexp.MustCompile(`\{\{.*\}\}|\$\{.*\}`)
)

// odd reports what is hardly meant in a text that requests have to match: white space at an end, a template that is not
// filled in, and a regular expression.
func (c *compiler) odd(t rulefile.Text, k, path string) {
	written := t.At.Number() > 0 // by hand, and not by a control plane
	switch {
	case strings.TrimSpace(t.Value) != t.Value:
		c.Warn(t.At, path, "%s %q begins or ends with white space, so it matches only requests that have the same", k, plain.Shorten(t.Value))
	case written && template.MatchString(t.Value):
		c.Warn(t.At, path, "%s '%s' looks like a template that was not filled in: it is compared as it is", k, plain.Shorten(t.Value))
	case written && k == rulefile.KeyValue && expression.MatchString(t.Value):
		c.Warn(t.At, path,
			"value '%s' looks like a regular expression: only a * has a meaning, any text, and the rest is compared as it is",
			plain.Shorten(t.Value))
	}
}

// ownCounters reports a value such as /products* each of whose matches has a counter of its own, although nothing says that this is meant:
// callers choose what follows, such as a query string, and with it a fresh counter. A control plane cannot say that it is meant, and Envoy
// Gateway's constant entries, whose key is their value, end so. If rlqs divides this limit or one below, share_threshold would be invalid,
// so it is not suggested.
func (c *compiler) ownCounters(d *rulefile.Descriptor, path string, divided bool) {
	counts := d.Limit != nil && !d.Limit.Unlimited.On || len(d.Limits) > 0 || len(d.Plans) > 0 || len(d.Children) > 0
	if begin, ends := strings.CutSuffix(d.Value.Value, "*"); counts && ends && begin != "" && d.Key.Value != d.Value.Value && d.Value.At.Number() > 0 && !d.Share.At.Present() {
		want := "share_threshold: true"
		if divided {
			want = "a key with one fixed value in the id of the bucket"
		}
		c.Warn(d.Value.At, path, "each value that matches '%s' has a counter of its own, so a caller that varies the value gets around the limit: "+
			"want %s, or share_threshold: false if that is intended", plain.Shorten(d.Value.Value), want)
	}
}

// withoutNumber reports a limit that rejects everything because its number was left out.
func (c *compiler) withoutNumber(l *rulefile.Limit, path string) {
	if !l.Requests.At.Present() && !c.misread {
		c.Warn(l.At, path, "no requests_per_unit, so every request is rejected: want a number, or 0 if that is intended")
	}
}

// shortPenalty reports a penalty that mostly ends while the window in which it began still rejects by itself. One that
// escalates beyond the window is not reported.
func (c *compiler) shortPenalty(r *Rule, at rulefile.Mark) {
	longest := r.Penalty.For
	if r.Penalty.Escalate > 1 {
		longest = r.Penalty.Max
	}
	outlasts := func(l engine.Limit) bool { return l.Algorithm != engine.FixedWindow || longest >= l.Window }
	if limits := r.RateLimits.Limits(); len(limits) == 0 || slices.ContainsFunc(limits, outlasts) {
		return
	}
	c.Warn(at, r.Path, "the limit itself rejects until its window ends, so a penalty of %s has no effect unless it begins in the last %[1]s: want a penalty longer than the window",
		spanText(longest))
}

// maxComparisons bounds how many pairs of wildcards are compared, which would otherwise grow with the square of their
// number. It is far more than any rules but hostile ones need.
const maxComparisons = 10_000_000

// unreachable reports the descriptors of the current source on a level that no request leads to, because a wildcard takes
// all that they match: one further up or, in front of a key without a value, any one.
func (c *compiler) unreachable(s scope) {
	file := int32(len(c.set.files) - 1)
	for _, n := range s.level.nodes {
		if c.spent > maxComparisons {
			return
		}
		if n.file != file || n.Value != "" && !n.IsWildcard() {
			continue
		}
		if by := c.hiding(s.level, n); by != nil {
			c.Warn(n.at, s.path+"."+n.Label(),
				"has no effect: everything that it matches is taken by the wildcard %s at %s", by.Label(), c.set.Place(by))
		}
	}
}

// hiding returns a wildcard of the level that is tried before n and matches all that n matches, or nil.
func (c *compiler) hiding(l *Level, n *Node) *Node {
	// A letter that occurs in no pattern can be taken by a * alone. So a pattern that matches the text of another one,
	// with this letter for each *, matches whatever the other one does.
	const any = "\U0010fffd"
	e := Entry{Key: []byte(strings.ReplaceAll(n.Key, "*", any)), Value: []byte(any)}
	if n.Value != "" {
		e.Value = []byte(strings.ReplaceAll(n.Value, "*", any))
	}
	takes := func(by *Node) bool {
		c.spent++
		earlier := by.Order < n.Order || !n.IsWildcard()
		return by != n && earlier && by.fits(&e)
	}
	if g := l.group(e.Key); g != nil && g.wild != nil {
		for _, candidates := range g.wild.candidates(e.Value) {
			if i := slices.IndexFunc(candidates, takes); i >= 0 {
				return candidates[i]
			}
		}
	}
	if i := slices.IndexFunc(l.wild, takes); i >= 0 {
		return l.wild[i]
	}
	return nil
}
