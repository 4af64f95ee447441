package rulefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// Bounds of sources.
const (
	MaxFileSize = 10 << 20 // size of a source in bytes
	MaxDepth    = 64       // levels of descriptors

	MaxQuotaKeys = 8 // in quota_group_by

	maxLine          = 512 << 10 // bytes per line
	maxDirectives    = 100       // lines that begin with %; the parser compares each with all others
	MaxItems         = 16        // in rate_limits
	maxIgnoredDepth  = 64        // nesting depth in keys that have no effect
	MaxMetadataDepth = 24        // Envoy fails to parse answers with deeper metadata
	MaxMetadataSize  = 1 << 20   // bytes of text; every answer carries the metadata
	freeVisits       = 100_000   // node visits through aliases, in addition to two per byte of the file
	freePaths        = 64 << 20  // total length of the descriptors' paths in bytes, in addition to four per byte of the file
	largeFile        = 1 << 20   // size of a source in bytes above which garbage is collected after each step
)

// Reader converts the nodes of one source to a [File] and reports errors.
type Reader struct {
	Report

	Grammar Grammar
	Trail   []Step                  // the path to the current node, starting with the domain
	open    map[*yaml.Node]struct{} // targets of the aliases being read
	visits  int                     // remaining node visits
	paths   int                     // remaining total length of paths in bytes
	Unread  bool                    // the source could not be read, which has been reported
	spent   bool                    // reading has stopped: visits or paths are used up, or there is a cycle
	Nodes   bool                    // keep nodes in descriptors
}

// NewSilent returns a reader for sources that were read before without errors. The caller ignores its report.
func NewSilent(g Grammar) *Reader {
	return &Reader{Grammar: g, visits: math.MaxInt, paths: math.MaxInt, open: map[*yaml.Node]struct{}{}, Trail: make([]Step, 1)}
}

// Step is a step of a path in the tree.
type Step struct{ Key, Value string }

// String returns the step as the reference writes it: key or key_value; a missing key is a question mark.
func (s Step) String() string {
	switch {
	case s.Key == "":
		return "?"
	case s.Value == "":
		return s.Key
	}
	return s.Key + "_" + s.Value
}

// Path returns the reader's position in the tree for messages. It is empty if the report is full.
func (r *Reader) Path() string {
	if len(r.Trail) == 1 && r.Trail[0].Key == "" || r.full() {
		return ""
	}
	var b strings.Builder
	for i, s := range r.Trail {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(Step{plain.Cut(s.Key, maxText), plain.Cut(s.Value, maxText)}.String())
	}
	return b.String()
}

// collect collects garbage after a step of reading a large source, so that the results of two steps are not in memory together. The nodes
// of a source take forty times as much memory as its text.
func collect(data []byte) {
	if len(data) > largeFile {
		runtime.GC()
	}
}

// Document parses a source and returns the map in its first document, or nil if it is empty or invalid.
func (r *Reader) Document(data []byte) *yaml.Node {
	if !r.Sound(data) {
		r.Unread = true
		return nil
	}
	r.visits, r.paths = freeVisits+2*len(data), freePaths+4*len(data)
	r.open = map[*yaml.Node]struct{}{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			r.Unread = true
			r.Syntax(data, err)
		}
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		r.Warn(At(&second), "", "a second document has no effect: only the first one of a file is read")
	}
	collect(data)
	if len(doc.Content) == 0 || r.IsNull(doc.Content[0]) {
		return nil
	}
	root := doc.Content[0]
	if Target(root).Kind != yaml.MappingNode {
		r.Fail(At(root), "", "error loading config file: cannot unmarshal %s: want a map with domain and descriptors", describe(root))
		r.Unread = true
		return nil
	}
	if r.IsManifest(root) {
		r.Unread = true
		return nil
	}
	return root
}

// Sound reports an error and returns false if data cannot be parsed in bounded memory, or differs in meaning from its appearance.
func (r *Reader) Sound(data []byte) bool {
	if !r.readable(data) {
		return false
	}
	if _, masked := WithLF(data); !r.fits(masked) {
		return false
	}
	at, name := strayBreak(data)
	collect(data)
	if name != "" {
		r.Fail(at, "", "error loading config file: "+NoBreak, name)
	}
	return name == ""
}

// readable reports an error and returns false if data is not UTF-8 text within the bounds.
func (r *Reader) readable(data []byte) bool {
	switch {
	case len(data) > MaxFileSize:
		r.Fail(Mark{}, "", "error loading config file: it has %d bytes: want at most %d", len(data), MaxFileSize)
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}), bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		r.Fail(Mark{1, 1}, "", "error loading config file: it is encoded in UTF-16: want UTF-8")
	default:
		return r.readableLines(data)
	}
	return false
}

// readableLines checks the lines of data for readable.
func (r *Reader) readableLines(data []byte) bool {
	line, directives := int32(0), 0
	for l := range bytes.Lines(data) {
		line++
		if l[0] == '%' {
			directives++
		}
		if directives > maxDirectives {
			r.Fail(Mark{line, 1}, "", "error loading config file: more than %d lines begin with %%, like YAML directives, which rules do not need", maxDirectives)
			return false
		}
		if len(l) > maxLine {
			r.Fail(Mark{line, 1}, "", "error loading config file: the line has %d bytes: want at most %d", len(l), maxLine)
			return false
		}
		if i := bytes.IndexByte(l, 0); i >= 0 {
			r.Fail(Mark{line, int32(i + 1)}, "", "error loading config file: a NUL byte: want text in UTF-8")
			return false
		}
		if !utf8.Valid(l) {
			i := 0
			for c, size := utf8.DecodeRune(l); c != utf8.RuneError || size > 1; c, size = utf8.DecodeRune(l[i:]) {
				i += size
			}
			r.Fail(Mark{line, int32(i + 1)}, "", "error loading config file: the byte 0x%02x is not UTF-8", l[i])
			return false
		}
	}
	return true
}

// yamlErrorLine matches the line in an error of the parser.
var yamlErrorLine = regexp.MustCompile(`line (\d+): `)

// Syntax reports an error of the parser. Since the error has only a line, the column is that of the line's first non-blank character.
func (r *Reader) Syntax(data []byte, err error) {
	var where Mark
	if m := yamlErrorLine.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 32) // matches only digits; ParseInt returns the maximum for larger numbers
		where = Mark{int32(n), 1}
		for l := range bytes.Lines(data) {
			if n--; n == 0 {
				where.Column += int32(len(l) - len(bytes.TrimLeft(l, " \t")))
			}
		}
	}
	r.Fail(where, "", "error loading config file: %v", err)
}

// At returns the position of a node.
func At(n *yaml.Node) Mark {
	return Mark{int32(min(n.Line, math.MaxInt32)), int32(min(n.Column, math.MaxInt32))}
}

// Target returns the node that an alias refers to, or n itself.
func Target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// enter begins reading a map or list; the caller must call leave at the end. It returns false for a cycle, for an invalid tag, and after
// too many visits through aliases.
func (r *Reader) enter(n *yaml.Node) (*yaml.Node, bool) {
	t := Target(n)
	if r.spent || !r.plainTag(t) {
		return t, false
	}
	if r.visits -= 1 + len(t.Content); r.visits < 0 {
		r.spent = true
		r.Fail(At(n), r.Path(), "error loading config file: yaml: document contains excessive aliasing")
		return t, false
	}
	if n.Kind == yaml.AliasNode {
		if _, cycle := r.open[t]; cycle {
			r.spent = true
			r.Fail(At(n), r.Path(), "error loading config file: yaml: anchor '%s' value contains itself", n.Value)
			return t, false
		}
		r.open[t] = struct{}{}
	}
	return t, true
}

// leave ends reading a map or list.
func (r *Reader) leave(n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		delete(r.open, n.Alias)
	}
}

// plainTag reports an error and returns false for explicit tags outside of YAML's core schema.
func (r *Reader) plainTag(n *yaml.Node) bool {
	if n.Style&yaml.TaggedStyle == 0 {
		return true
	}
	switch n.Tag {
	case "!!str", "!!int", "!!bool", "!!float", "!!null", "!!map", "!!seq", "!!merge":
		return true
	}
	r.Fail(At(n), r.Path(),
		"error loading config file: the tag %s is not accepted: want none, or one of !!str, !!int, !!bool, !!float, !!null, !!map, !!seq", n.Tag)
	return false
}

// Mapping calls set for each valid key of a map, including those merged in by <<, in file order, so that the last of several wins.
func (r *Reader) Mapping(n *yaml.Node, where Place, set func(k *Keyword, v *yaml.Node)) {
	var seen []*Keyword
	r.pairs(n, false, func(p pair) {
		k := r.key(p, where)
		again := slices.Contains(seen, k)
		switch {
		case k == nil:
			return
		case again && p.merged:
			r.Warn(At(p.key), r.Path(), "key '%s' merged in by << overrides the one above it: put << first", k.Name)
		case again:
			r.Warn(At(p.key), r.Path(), "key '%s' is repeated: the last one wins", k.Name)
		case !p.merged:
			seen = append(seen, k)
		}
		set(k, p.value)
	})
}

// pair is a key and its value.
type pair struct {
	key, value *yaml.Node
	merged     bool // brought in by <<
}

// pairs calls visit for each pair of a map, including those merged in by <<.
func (r *Reader) pairs(n *yaml.Node, merged bool, visit func(p pair)) {
	m, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	for i := 0; i+1 < len(m.Content); i += 2 {
		if p := (pair{m.Content[i], m.Content[i+1], merged}); p.key.Tag == "!!merge" {
			r.merged(p.value, func(part *yaml.Node) { r.pairs(part, true, visit) })
		} else {
			visit(p)
		}
	}
}

// merged visits the maps of a <<: a single map, or a list in reverse order, because its first element must win.
func (r *Reader) merged(n *yaml.Node, visit func(part *yaml.Node)) {
	t := Target(n)
	parts := []*yaml.Node{n}
	if t.Kind == yaml.SequenceNode {
		if _, ok := r.enter(n); !ok {
			return
		}
		defer r.leave(n)
		parts = t.Content
	}
	for _, part := range slices.Backward(parts) {
		if Target(part).Kind == yaml.MappingNode {
			visit(part)
		} else {
			r.Fail(At(part), r.Path(), "error loading config file: yaml: map merge requires map or sequence of maps as the value")
		}
	}
}

// key returns the row of a key that has an effect in its place. It reports any other key, and returns nil.
func (r *Reader) key(p pair, where Place) (k *Keyword) {
	n := Target(p.key)
	rows := r.Grammar[n.Value]
	s := resolve(n)
	isText := s.kind == kindString
	if where == InPenalty && s.kind == kindBool && s.truth { // YAML 1.1 resolves on to true, and its tools write true
		rows = r.Grammar[KeyOn]
		isText = true
	}
	var places Place
	for _, row := range rows {
		if places |= row.Where; row.Where&where != 0 {
			k = row
		}
	}
	switch {
	case n.Kind != yaml.ScalarNode || !isText || !r.plainTag(n):
		r.Fail(At(n), r.Path(), "config error, key is not of type string: %s", brief(n))
	case rows == nil:
		r.unknown(n, where)
	case k != nil:
		return k
	case rows[0].OfReference:
		r.Warn(At(n), r.Path(), "key '%s' has no effect in %s: it belongs in %s", n.Value, where, places&^InIgnored)
		r.ignored(n.Value, p.value, maxIgnoredDepth)
	default:
		r.Fail(At(n), r.Path(), "config error, key '%s' does not belong in %s: it belongs in %s", rows[0].Name, where, places)
	}
	return nil
}

// unknown reports an unknown key.
func (r *Reader) unknown(n *yaml.Node, where Place) {
	if r.full() {
		r.Fail(At(n), r.Path(), "config error, unknown key")
		return
	}
	if s := where.similar(n.Value); s != "" {
		r.Fail(At(n), r.Path(), "config error, unknown key '%s': did you mean '%s'?", plain.Shorten(n.Value), s)
		return
	}
	r.Fail(At(n), r.Path(), "config error, unknown key '%s': %s takes %s", plain.Shorten(n.Value), where, where.accepted())
}

// ignored validates the value of a key that has no effect as far as the reference does.
func (r *Reader) ignored(k string, n *yaml.Node, depth int) {
	t := Target(n)
	switch {
	case k == KeyMetadata:
	case t.Kind == yaml.ScalarNode:
		r.scalar(n, wantQuotes)
	case depth == 0:
		r.Fail(At(n), r.Path(), "maps and lists are nested more than %d deep", maxIgnoredDepth)
	case t.Kind == yaml.MappingNode:
		r.pairs(n, false, func(p pair) {
			if k := r.key(p, InIgnored); k != nil {
				r.ignored(k.Name, p.value, depth-1)
			}
		})
	default:
		m, ok := r.enter(n)
		if !ok {
			return
		}
		defer r.leave(n)
		for _, item := range m.Content {
			if r.isElement(item) {
				r.ignored("", item, depth-1)
			}
		}
	}
}

// list begins reading a list of maps. The caller must call leave at the end. ok is false if n is not a list; null is an empty list.
func (r *Reader) list(k string, n *yaml.Node) (items []*yaml.Node, leave func(), ok bool) {
	if r.IsNull(n) {
		return nil, func() {}, true
	}
	if Target(n).Kind != yaml.SequenceNode {
		want := "a list of maps"
		if k == KeyRateLimits && Target(n).Kind == yaml.MappingNode {
			want += ", or rate_limit for a single limit"
		}
		r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: want %s", describe(n), k, want)
		return nil, nil, false
	}
	m, ok := r.enter(n)
	if !ok {
		return nil, nil, false
	}
	return m.Content, func() { r.leave(n) }, true
}

// isElement reports whether an element of a list is a map. It reports an error if it is not.
func (r *Reader) isElement(n *yaml.Node) bool {
	if t := Target(n); t.Kind == yaml.MappingNode {
		return r.plainTag(t)
	}
	r.Fail(At(n), r.Path(), "config error, yaml file contains list of type other than map: %s", brief(n))
	return false
}

// isMapping reports whether the value of a key is a map. It reports an error if it is not.
func (r *Reader) isMapping(k string, n *yaml.Node) bool {
	if t := Target(n); t.Kind == yaml.MappingNode {
		return r.plainTag(t)
	}
	want := "a map"
	if k == KeyRateLimit && Target(n).Kind == yaml.SequenceNode {
		want += ", or rate_limits for a list"
	}
	r.Fail(At(n), r.Path(), "error loading config file: cannot unmarshal %s into %s: want %s", describe(n), k, want)
	return false
}

// IsNull reports whether a node is null, or an alias of null.
func (r *Reader) IsNull(n *yaml.Node) bool {
	t := Target(n)
	return t.Kind == yaml.ScalarNode && resolve(t).kind == kindNull
}

// describe formats the type of a node and the text of a scalar for messages.
func describe(n *yaml.Node) string {
	n = Target(n)
	if n.Kind == yaml.MappingNode {
		return "!!map"
	}
	if n.Kind == yaml.SequenceNode {
		return "!!seq"
	}
	return fmt.Sprintf("%s `%s`", resolve(n).kind, plain.Shorten(n.Value))
}

// brief formats a node for messages, without its type.
func brief(n *yaml.Node) string {
	n = Target(n)
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case resolve(n).kind == kindNull:
		return "<nil>"
	}
	return plain.Shorten(n.Value)
}

// peek returns the text of a key's value in a map for paths in messages. In an invalid map, the result may be wrong.
func peek(n *yaml.Node, key string) string {
	if v := Target(value(Target(n), key)); v.Kind == yaml.ScalarNode && resolve(v).kind != kindNull {
		return v.Value
	}
	return ""
}

// value returns the last value of a key in a map, or an empty node.
func value(n *yaml.Node, key string) *yaml.Node {
	for i := len(n.Content) - 2; n.Kind == yaml.MappingNode && i >= 0; i -= 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return &yaml.Node{}
}
