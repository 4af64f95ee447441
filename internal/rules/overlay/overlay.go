// Package overlay changes rules from another source. The files of an overlay are trees like rules: each domain and descriptor is a
// pattern of a path, and its other keys change the rules at matching paths. An overlay is a [rulefile.Transform]: the reader of rules
// parses it, and it changes parsed rules before they are validated. So an overlay may have any key of rules, and its result is
// validated like hand-written rules. A pattern is validated when it matches a rule.
//
// This package is optional: the core works without it.
package overlay

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/glob"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// anyDepth is the key of a pattern that matches one or more descriptors with any keys and values.
const anyDepth = "**"

// maxOverlays is the maximum number of files of an overlay, which the columns of marks must represent.
const maxOverlays = 1<<(31-rulefile.OverlayShift) - 1

// overlay is the overlay of one load.
type overlay struct {
	reports      []*rulefile.Report // one for each file
	files        []string
	domains      patterns
	all          []*pattern       // patterns with keys
	failed       bool             // the overlay has an error, so it changes nothing
	applied      bool             // there are rules
	silentReader *rulefile.Reader // reads keys again for each rule, without reporting their problems twice
}

// pattern is a descriptor of an overlay, or a domain, whose Step has no value.
type pattern struct {
	rulefile.Step

	laid               rulefile.OverlayChange
	at                 rulefile.Mark
	path               string
	keyGlob, valueGlob *glob.Pattern
	deep               bool // matches one or more descriptors with any keys and values
	keys               []laidKey
	below              patterns

	met  int // number of rules or domains that it changed
	lost int // number of matches that a more specific pattern changed
	bare int // number of matching descriptors without a limit
}

// laidKey is a key of an overlay with its value.
type laidKey struct {
	k *rulefile.Keyword
	v *yaml.Node
}

// patterns are the patterns of one level. The zero value is empty.
type patterns struct {
	exact map[rulefile.Step]*pattern // all patterns by their text
	wild  []*pattern                 // patterns with a *, most specific first
}

// With returns options that apply the overlay in sources.
func With(o descriptors.Options, sources []rulefile.Source) descriptors.Options {
	o.Transform = func() rulefile.Transform {
		over := read(sources, o.Strict)
		return rulefile.Transform{Apply: over.apply, Problems: over.problems}
	}
	return o
}

func read(sources []rulefile.Source, strict bool) *overlay {
	g := rulefile.NewGrammar()
	o := &overlay{silentReader: rulefile.NewSilent(g)}
	for i := range sources {
		o.files = append(o.files, sources[i].Name)
		r := &rulefile.Reader{Report: rulefile.Report{File: sources[i].Name, Strict: strict, Overlays: o.files}, Grammar: g, Nodes: true}
		o.reports = append(o.reports, &r.Report)
		switch {
		case i < maxOverlays:
			o.read(r, sources[i].Data)
		case i == maxOverlays:
			r.Fail(rulefile.Mark{}, "", "an overlay of %d files: want at most %d", len(sources), maxOverlays)
		}
		o.failed = o.failed || r.Failures > 0
	}
	return o
}

// read reads a file of the overlay into patterns.
func (o *overlay) read(r *rulefile.Reader, data []byte) {
	root := r.Document(data)
	if r.Unread {
		return
	}
	const noDomain = `an overlay without a domain: set domain to the name of one, or to "*" for all`
	if root == nil {
		r.Fail(rulefile.Mark{}, "", noDomain)
		return
	}
	stamp(root, len(o.files))
	f, at := r.File(root), rulefile.At(root)
	if r.Unread {
		return
	}
	if f.Domain.Value == "" && !f.Domain.Broken {
		r.Fail(f.Domain.Or(at), "", noDomain)
	}
	if r.Domain = f.Domain.Value; r.Domain == "*" {
		r.Domain = ""
	}
	p := o.enter(r, &o.domains, &pattern{
		Step: rulefile.Step{Key: f.Domain.Value}, at: at, keys: o.keysOf(root, rulefile.InRoot),
	})
	o.level(r, f.Descriptors, p)
}

// stamp stores the number of an overlay's file in the columns of its nodes.
func stamp(n *yaml.Node, file int) {
	n.Column |= file << rulefile.OverlayShift
	for _, inner := range n.Content {
		stamp(inner, file)
	}
}

// level creates the patterns below a pattern.
func (o *overlay) level(r *rulefile.Reader, all []rulefile.Descriptor, above *pattern) {
	for i := range all {
		d := &all[i]
		r.Trail = append(r.Trail, rulefile.Step{Key: d.Key.Value, Value: d.Value.Value})
		o.descriptor(r, d, above)
		r.Trail = r.Trail[:len(r.Trail)-1]
	}
}

func (o *overlay) descriptor(r *rulefile.Reader, d *rulefile.Descriptor, above *pattern) {
	p := &pattern{
		Step: rulefile.Step{Key: d.Key.Value, Value: d.Value.Value}, at: d.At,
		deep: d.Key.Value == anyDepth, keys: o.keysOf(d.Node, rulefile.InDescriptor),
	}
	for _, l := range p.keys {
		if r.IsNull(l.v) && (l.k.Name == rulefile.KeyRateLimit || l.k.Name == rulefile.KeyRateLimits) {
			r.Fail(rulefile.At(l.v), r.Path(), "%s is empty: an overlay can change limits, but not remove them", l.k.Name)
		}
	}
	switch {
	case p.Key == "" && !d.Key.Broken:
		r.Fail(d.Key.Or(p.at), r.Path(),
			"a descriptor of an overlay without a key: set key to the key of a descriptor, \"*\" for any, or \"**\" for any number of descriptors")
	case p.deep && d.Value.At.Present():
		r.Fail(d.Value.At, r.Path(), "a value beside the key %s, which stands for any number of descriptors: remove it", anyDepth)
	}
	p = o.enter(r, &above.below, p)
	if p.deep && len(d.Children) > 0 {
		r.Fail(d.ChildrenAt, r.Path(), "descriptors below %s, which stands for any number of descriptors: remove them", anyDepth)
		return
	}
	o.level(r, d.Children, p)
}

// keysOf returns the keys of a map that apply to rules.
func (o *overlay) keysOf(n *yaml.Node, where rulefile.Place) (keys []laidKey) {
	o.silentReader.Mapping(n, where, func(k *rulefile.Keyword, v *yaml.Node) {
		switch k.Name {
		case rulefile.KeyDomain, rulefile.KeyDescriptors, rulefile.KeyKey, rulefile.KeyValue:
		default:
			keys = append(keys, laidKey{k, v})
		}
	})
	return keys
}

// enter adds p to its level. If the level has the same pattern, enter merges them, and only one of them may have keys.
func (o *overlay) enter(r *rulefile.Reader, level *patterns, p *pattern) *pattern {
	p.path, p.keyGlob, p.valueGlob = r.Path(), glob.New(p.Key), glob.New(p.Value)
	p.laid = rulefile.OverlayChange{Place: fmt.Sprintf("%s:%d", r.Report.File, p.at.Number()), Keys: p.shown()}
	earlier := level.exact[p.Step]
	switch {
	case earlier == nil:
		level.add(p)
	case len(earlier.keys) > 0 && len(p.keys) > 0:
		r.Fail(p.at, p.path, "%s changes this already: put all its keys in one place", earlier.laid.Place)
		return earlier
	case len(p.keys) > 0:
		earlier.keys, earlier.at, earlier.laid = p.keys, p.at, p.laid
		p = earlier
	default:
		return earlier
	}
	if len(p.keys) > 0 {
		o.all = append(o.all, p)
	}
	return p
}

func (l *patterns) add(p *pattern) {
	if l.exact == nil {
		l.exact = map[rulefile.Step]*pattern{}
	}
	l.exact[p.Step] = p
	if p.keyGlob == nil && p.valueGlob == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(l.wild, p, func(a, b *pattern) int {
		return cmp.Or(a.compare(b), -1) // after equally specific ones
	})
	l.wild = slices.Insert(l.wild, i, p)
}

// compare orders the patterns of a level by decreasing specificity: keys without a * before keys with one, keys with
// more other characters before keys with fewer, and then values in the same way.
func (p *pattern) compare(q *pattern) int {
	return cmp.Or(
		p.vagueness()-q.vagueness(),
		cmp.Compare(vagueness(p.valueGlob), vagueness(q.valueGlob)),
	)
}

func (p *pattern) vagueness() int {
	if p.deep {
		return math.MaxInt
	}
	return vagueness(p.keyGlob)
}

// vagueness returns a number that increases with decreasing specificity; 0 for nil, a text without *.
func vagueness(g *glob.Pattern) int {
	if g == nil {
		return 0
	}
	return math.MaxInt32 - g.Literals
}

// matching appends the patterns that match a domain or descriptor, most specific first.
func (l *patterns) matching(to []*pattern, s rulefile.Step) []*pattern {
	same := l.exact[s]
	switch {
	case same == nil:
	case same.deep:
		same = nil
	default:
		to = append(to, same)
	}
	for _, p := range l.wild {
		if p != same && p.fits(s) {
			to = append(to, p)
		}
	}
	return to
}

func (p *pattern) fits(s rulefile.Step) bool {
	if p.deep {
		return true
	}
	fits := func(g *glob.Pattern, pattern, text string) bool {
		if g == nil {
			return pattern == text
		}
		return g.Match([]byte(text))
	}
	return fits(p.keyGlob, p.Key, s.Key) && fits(p.valueGlob, p.Value, s.Value)
}

// longestShown is the approximate maximum size in bytes of an overlay's keys shown for a rule.
const longestShown = 300

// shown formats the keys and values as YAML on one line.
func (p *pattern) shown() string {
	var b strings.Builder
	for i, l := range p.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(l.k.Name + ": ")
		show(&b, l.v)
	}
	return b.String()
}

func show(b *strings.Builder, n *yaml.Node) {
	n = rulefile.Target(n)
	brackets := "{}"
	switch {
	case b.Len() > longestShown:
		b.WriteString("…")
		return
	case n.Kind == yaml.ScalarNode:
		b.WriteString(plain.Quoted([]byte(plain.Shorten(n.Value))))
		return
	case n.Kind == yaml.SequenceNode:
		brackets = "[]"
	}
	b.WriteByte(brackets[0])
	for i, inner := range n.Content {
		switch {
		case i == 0:
		case n.Kind == yaml.MappingNode && i%2 == 1:
			b.WriteString(": ")
		default:
			b.WriteString(", ")
		}
		show(b, inner)
		if b.Len() > longestShown {
			break
		}
	}
	b.WriteByte(brackets[1])
}
