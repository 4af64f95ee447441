package descriptors

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// An overlay says which keys are laid over rules that come from elsewhere. Its files are trees like those of rules: each
// domain and descriptor is the pattern of a path, and its other keys are laid over the rules on such paths. It is read
// by the code that reads rules and laid over what was read of them, before any of it is checked, so each key that a rule
// may have is a key of an overlay, and the result is checked as if somebody had written it.

// anyDepth is the key of a pattern that stands for one or more descriptors, whatever their keys and values are.
const anyDepth = "**"

// maxOverlays is the number of files of an overlay, which the columns of its marks have to hold.
const maxOverlays = 1<<(31-overlayShift) - 1

// overlayShift is where the number of an overlay's file, from 1, begins in the column of a mark. Lines are shorter.
const overlayShift = 20

// overlay is the overlay of a load.
type overlay struct {
	reports []*report // one for each file
	files   []string
	domains patterns
	all     []*pattern
	failed  bool   // it has an error, so that it is not laid over anything
	hand    reader // lays; what it would report has been reported when the overlay was read
}

// pattern is a domain, which is a key without a value, or a descriptor of an overlay.
type pattern struct {
	step

	at                 mark
	place              string // file:line
	path               string
	trail              []step // the domain, the descriptors above it, and itself; of patterns with keys
	keyGlob, valueGlob *glob
	deep               bool // it stands for one or more descriptors, whatever their keys and values are
	keys               []laidKey
	text               string // the keys and their values
	below              patterns

	met  int // how many rules, or domains, its keys were laid over
	lost int // how many it matches that a more specific pattern takes
	bare int // how many descriptors without a limit it matches
}

// laidKey is a key of an overlay and its value.
type laidKey struct {
	k string
	v *yaml.Node
}

// patterns are those of one level. The zero value has none.
type patterns struct {
	exact map[step]*pattern // all of them, by what they say
	wild  []*pattern        // those with a *, the most specific first
}

// newOverlay reads an overlay.
func newOverlay(sources []Source, strict bool, g grammar) *overlay {
	o := &overlay{hand: reader{grammar: g, visits: math.MaxInt, open: map[*yaml.Node]struct{}{}, trail: make([]step, 1)}}
	for i := range sources {
		o.files = append(o.files, sources[i].Name)
		r := &reader{report: report{file: sources[i].Name, strict: strict, overlays: o.files}, grammar: g}
		o.reports = append(o.reports, &r.report)
		switch {
		case i < maxOverlays:
			o.read(r, sources[i].Data)
		case i == maxOverlays:
			r.fail(mark{}, "", "an overlay of %d files: want at most %d", len(sources), maxOverlays)
		}
		r.sort()
		r.problems = slices.Compact(r.problems) // keys in << are read twice
		o.failed = o.failed || r.failures > 0
	}
	return o
}

// read reads a file of the overlay.
func (o *overlay) read(r *reader, data []byte) {
	root := r.document(data)
	if r.unread {
		return
	}
	if root == nil {
		r.fail(mark{}, "", "an overlay without a domain: want the name of one under domain, or \"*\" for all")
		return
	}
	stamp(root, len(o.files))
	var (
		p       = &pattern{at: at(root)}
		name    text
		below   *yaml.Node
		ignored rawFile
	)
	r.trail = []step{{key: peek(root, kwDomain)}}
	r.mapping(root, inRoot, func(k string, v *yaml.Node) {
		switch k {
		case kwDomain:
			name = r.text(k, v)
		case kwDescriptors:
			below = v
		default:
			p.keys = append(p.keys, laidKey{k, v})
		}
	})
	if name.s == "" && !name.broken {
		r.fail(name.or(p.at), "", "an overlay without a domain: want the name of one under domain, or \"*\" for all")
	}
	if r.domain = name.s; r.domain == "*" {
		r.domain = ""
	}
	r.root(p.node(nil), &ignored)
	p = o.enter(r, &o.domains, p, name.s, "")
	if below != nil {
		o.level(r, below, p)
	}
}

// stamp writes the number of an overlay's file into the columns of its nodes.
func stamp(n *yaml.Node, file int) {
	n.Column |= file << overlayShift
	for _, inner := range n.Content {
		stamp(inner, file)
	}
}

// level reads the descriptors below p.
func (o *overlay) level(r *reader, n *yaml.Node, p *pattern) {
	items, leave, ok := r.list(kwDescriptors, n)
	if !ok {
		return
	}
	defer leave()
	switch {
	case len(items) == 0:
		return
	case p.deep:
		r.fail(at(n), r.path(), "descriptors below %s, which stands for any number of descriptors: want none", anyDepth)
		return
	case r.tooDeep(at(n)):
		return
	}
	for _, item := range items {
		if r.isElement(item) {
			m := target(item)
			r.trail = append(r.trail, step{peek(m, kwKey), peek(m, kwValue)})
			o.descriptor(r, item, p)
			r.trail = r.trail[:len(r.trail)-1]
		}
	}
}

func (o *overlay) descriptor(r *reader, n *yaml.Node, above *pattern) {
	var (
		p          = &pattern{at: at(n)}
		key, value text
		below      *yaml.Node
	)
	r.mapping(n, inDescriptor, func(k string, v *yaml.Node) {
		switch k {
		case kwKey:
			key = r.text(k, v)
		case kwValue:
			value = r.text(k, v)
		case kwDescriptors:
			below = v
		default:
			p.keys = append(p.keys, laidKey{k, v})
		}
	})
	for _, l := range p.keys {
		if r.isNull(l.v) && (l.k == kwRateLimit || l.k == kwRateLimits) {
			r.fail(at(l.v), r.path(), "%s is empty: an overlay changes limits, and takes none away", l.k)
		}
	}
	switch {
	case key.s == "" && !key.broken:
		r.fail(key.or(p.at), r.path(), "a descriptor of an overlay without a key: want the key of a descriptor, \"*\" for any, or \"**\" for any number of descriptors")
	case key.s == anyDepth && value.at.present():
		r.fail(value.at, r.path(), "a value beside the key %s, which stands for any number of descriptors: want none", anyDepth)
	}
	p.deep = key.s == anyDepth
	r.descriptor(p.node(nil), new(rawDescriptor))
	p = o.enter(r, &above.below, p, key.s, value.s)
	if below != nil {
		o.level(r, below, p)
	}
}

// enter puts p among those of its level. If there is one for the same already, what is below belongs to that one, and
// only one of them may have keys.
func (o *overlay) enter(r *reader, level *patterns, p *pattern, key, value string) *pattern {
	p.step, p.path = step{key, value}, r.path()
	p.keyGlob, p.valueGlob = newGlob(key), newGlob(value)
	p.place, p.text = fmt.Sprintf("%s:%d", r.report.file, p.at.number()), p.shown()
	earlier := level.exact[p.step]
	switch {
	case earlier == nil:
		level.add(p)
	case len(earlier.keys) > 0 && len(p.keys) > 0:
		r.fail(p.at, p.path, "%s has this already: want all keys for it in one place", earlier.place)
		return earlier
	case len(p.keys) > 0:
		earlier.keys, earlier.at, earlier.place, earlier.text = p.keys, p.at, p.place, p.text
		p = earlier
	default:
		return earlier
	}
	if len(p.keys) > 0 {
		p.trail = slices.Clone(r.trail)
		o.all = append(o.all, p)
	}
	return p
}

func (l *patterns) add(p *pattern) {
	if l.exact == nil {
		l.exact = map[step]*pattern{}
	}
	l.exact[p.step] = p
	if p.keyGlob == nil && p.valueGlob == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(l.wild, p, func(a, b *pattern) int {
		return cmp.Or(a.compare(b), -1) // behind what is as specific
	})
	l.wild = slices.Insert(l.wild, i, p)
}

// compare orders patterns of a level, the more specific one first: a key without a * comes before one with, one with
// more letters beside its * before one with fewer, and where keys are equal in this, values decide likewise.
func (p *pattern) compare(q *pattern) int {
	return cmp.Or(
		p.vagueness()-q.vagueness(),
		cmp.Compare(p.valueGlob.vagueness(), q.valueGlob.vagueness()),
	)
}

func (p *pattern) vagueness() int {
	if p.deep {
		return math.MaxInt
	}
	return p.keyGlob.vagueness()
}

// vagueness returns a number that is the higher, the less specific a pattern is; 0 for a text, which has none.
func (g *glob) vagueness() int {
	if g == nil {
		return 0
	}
	return math.MaxInt32 - g.min
}

// matching appends the patterns that a domain or a descriptor of rules fits, the most specific first.
func (l *patterns) matching(to []*pattern, s step) []*pattern {
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

func (p *pattern) fits(s step) bool {
	if p.deep {
		return true
	}
	fits := func(g *glob, pattern, text string) bool {
		if g == nil {
			return pattern == text
		}
		return g.match([]byte(text))
	}
	return fits(p.keyGlob, p.key, s.key) && fits(p.valueGlob, p.value, s.value)
}

// node returns a map of those keys that want wants; nil wants all. A key that is there twice, of which the reader has
// told, is merged in.
func (p *pattern) node(want func(k string) bool) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: int(p.at.line), Column: int(p.at.column)}
	for i, l := range p.keys {
		if want != nil && !want(l.k) {
			continue
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: l.k, Line: l.v.Line, Column: l.v.Column}
		if again := func(m laidKey) bool { return m.k == l.k }; slices.ContainsFunc(p.keys[i+1:], again) {
			part := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{key, l.v}, Line: n.Line, Column: n.Column}
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!merge", Value: "<<"}, part)
			continue
		}
		n.Content = append(n.Content, key, l.v)
	}
	return n
}

// longestShown is about how many bytes of an overlay's keys are shown for a rule.
const longestShown = 300

// shown returns the keys and their values as YAML, on one line.
func (p *pattern) shown() string {
	var b strings.Builder
	for i, l := range p.keys {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(l.k + ": ")
		show(&b, l.v)
	}
	return b.String()
}

func show(b *strings.Builder, n *yaml.Node) {
	n = target(n)
	brackets := "{}"
	switch {
	case b.Len() > longestShown:
		b.WriteString("…")
		return
	case n.Kind == yaml.ScalarNode:
		b.WriteString(printable([]byte(Shorten(n.Value))))
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
