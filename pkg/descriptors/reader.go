package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// Bounds on what is read.
const (
	MaxFileSize = 10 << 20 // bytes of a source
	MaxDepth    = 64       // levels of descriptors

	MaxQuotaKeys = 8 // of quota_group_by

	maxLine          = 512 << 10 // bytes of a line
	maxItems         = 16        // of rate_limits
	maxIgnoredDepth  = 64        // of keys that have no effect
	maxMetadataDepth = 24        // if it were deeper, Envoy would refuse to parse the answer that carries it
	maxMetadataSize  = 1 << 20   // bytes of text in it, since every answer carries them
	freeVisits       = 100_000   // nodes that may be visited through aliases, on top of two per byte of the file
)

// reader turns the nodes of one source into raw structs.
type reader struct {
	report

	grammar grammar
	trail   []step                  // the descriptors around what is being read, the domain first
	open    map[*yaml.Node]struct{} // targets of the aliases being read
	visits  int                     // how many nodes may still be read
	unread  bool                    // the source could not be read, and that has been reported
	spent   bool                    // reading has stopped: visits are used up, or there is a cycle
}

// step is one step of a path in the tree.
type step struct{ key, value string }

// String returns the step as the reference spells it: key, or key_value; a missing key is a question mark.
func (s step) String() string {
	switch {
	case s.key == "":
		return "?"
	case s.value == "":
		return s.key
	}
	return s.key + "_" + s.value
}

// path returns where in the tree the reader is.
func (r *reader) path() string {
	if len(r.trail) == 1 && r.trail[0].key == "" {
		return ""
	}
	var b strings.Builder
	for i, s := range r.trail {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// read parses a source and reads its first document. If it reports an error the result is incomplete.
func (r *reader) read(data []byte) rawFile {
	root := r.document(data)
	if root == nil {
		return rawFile{}
	}
	f := r.file(root)
	r.unread = r.spent // the rest is missing, which would look like errors
	return f
}

// document parses a source and returns the map that is its first document, or nil if it is empty or cannot be read.
func (r *reader) document(data []byte) *yaml.Node {
	if !r.sound(data) {
		r.unread = true
		return nil
	}
	r.visits = freeVisits + 2*len(data)
	r.open = map[*yaml.Node]struct{}{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if !errors.Is(err, io.EOF) {
			r.unread = true
			r.syntax(data, err)
		}
		return nil
	}
	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		r.warn(at(&second), "", "a second document has no effect: only the first one of a file is read")
	}
	if len(doc.Content) == 0 || r.isNull(doc.Content[0]) {
		return nil
	}
	root := doc.Content[0]
	if target(root).Kind != yaml.MappingNode {
		r.fail(at(root), "", "error loading config file: cannot unmarshal %s: want a map with domain and descriptors", describe(root))
		r.unread = true
		return nil
	}
	if r.isManifest(root) {
		r.unread = true
		return nil
	}
	return root
}

// sound rejects what cannot be parsed in bounded memory, or would not mean what people see.
func (r *reader) sound(data []byte) bool {
	if !r.readable(data) {
		return false
	}
	if _, masked := withLF(data); !r.surveyed(masked) {
		return false
	}
	at, name := strayBreak(data)
	if name != "" {
		r.fail(at, "", "error loading config file: "+noBreak, name)
	}
	return name == ""
}

// readable rejects what is not YAML text of a size fit for memory.
func (r *reader) readable(data []byte) bool {
	switch {
	case len(data) > MaxFileSize:
		r.fail(mark{}, "", "error loading config file: it has %d bytes: want at most %d", len(data), MaxFileSize)
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}), bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		r.fail(mark{1, 1}, "", "error loading config file: it is encoded in UTF-16: want UTF-8")
	default:
		return r.readableLines(data)
	}
	return false
}

func (r *reader) readableLines(data []byte) bool {
	line := int32(0)
	for l := range bytes.Lines(data) {
		line++
		if len(l) > maxLine {
			r.fail(mark{line, 1}, "", "error loading config file: the line has %d bytes: want at most %d", len(l), maxLine)
			return false
		}
		if i := bytes.IndexByte(l, 0); i >= 0 {
			r.fail(mark{line, int32(i + 1)}, "", "error loading config file: a NUL byte: want text in UTF-8")
			return false
		}
		if !utf8.Valid(l) {
			i := 0
			for c, size := utf8.DecodeRune(l); c != utf8.RuneError || size > 1; c, size = utf8.DecodeRune(l[i:]) {
				i += size
			}
			r.fail(mark{line, int32(i + 1)}, "", "error loading config file: the byte 0x%02x is not UTF-8", l[i])
			return false
		}
	}
	return true
}

var yamlErrorLine = regexp.MustCompile(`line (\d+): `)

// syntax reports an error of the parser, which gives a line but no column; the column is that of the line's first
// non-blank character.
func (r *reader) syntax(data []byte, err error) {
	var where mark
	if m := yamlErrorLine.FindStringSubmatch(err.Error()); m != nil {
		n, _ := strconv.ParseInt(m[1], 10, 32) // the expression matches only digits; a number too large becomes the largest
		where = mark{int32(n), 1}
		for l := range bytes.Lines(data) {
			if n--; n == 0 {
				where.column += int32(len(l) - len(bytes.TrimLeft(l, " \t")))
			}
		}
	}
	r.fail(where, "", "error loading config file: %v", err)
}

func at(n *yaml.Node) mark {
	return mark{int32(min(n.Line, math.MaxInt32)), int32(min(n.Column, math.MaxInt32))}
}

// target returns what an alias stands for, or n itself.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// enter opens a map or list for reading; leave closes it again. It returns false for a cycle, for a tag that is
// refused, and once aliases have multiplied the file too much.
func (r *reader) enter(n *yaml.Node) (*yaml.Node, bool) {
	t := target(n)
	if r.spent || !r.plainTag(t) {
		return t, false
	}
	if r.visits -= 1 + len(t.Content); r.visits < 0 {
		r.spent = true
		r.fail(at(n), r.path(), "error loading config file: yaml: document contains excessive aliasing")
		return t, false
	}
	if n.Kind == yaml.AliasNode {
		if _, cycle := r.open[t]; cycle {
			r.spent = true
			r.fail(at(n), r.path(), "error loading config file: yaml: anchor '%s' value contains itself", n.Value)
			return t, false
		}
		r.open[t] = struct{}{}
	}
	return t, true
}

func (r *reader) leave(n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		delete(r.open, n.Alias)
	}
}

// plainTag rejects explicit tags other than those of YAML's core schema.
func (r *reader) plainTag(n *yaml.Node) bool {
	if n.Style&yaml.TaggedStyle == 0 {
		return true
	}
	switch n.Tag {
	case "!!str", "!!int", "!!bool", "!!float", "!!null", "!!map", "!!seq", "!!merge":
		return true
	}
	r.fail(at(n), r.path(), "error loading config file: the tag %s is not accepted: want none, or one of !!str, !!int, !!bool, !!float, !!null, !!map, !!seq", n.Tag)
	return false
}

// mapping calls set for each key of a map that is allowed there, including those merged in with <<, in the order of the
// file, so that the last of several wins.
func (r *reader) mapping(n *yaml.Node, where place, set func(k string, v *yaml.Node)) {
	var seen keywordSet
	r.pairs(n, where, func(k keyword, p pair) {
		switch {
		case !seen.has(k):
		case p.merged:
			r.warn(at(p.key), r.path(), "key '%s' merged in by << overrides the one above it: put << first", k.name)
		default:
			r.warn(at(p.key), r.path(), "key '%s' is repeated: the last one wins", k.name)
		}
		if !p.merged {
			seen.add(k)
		}
		set(k.name, p.value)
	})
}

// pair is a key and its value; merged is true if << brought it in.
type pair struct {
	key, value *yaml.Node
	merged     bool
}

func (r *reader) pairs(n *yaml.Node, where place, visit func(k keyword, p pair)) {
	m, ok := r.enter(n)
	if !ok {
		return
	}
	defer r.leave(n)
	for i := 0; i+1 < len(m.Content); i += 2 {
		p := pair{key: m.Content[i], value: m.Content[i+1]}
		if p.key.Tag == "!!merge" {
			r.merged(p.value, func(part *yaml.Node) {
				r.pairs(part, where, func(k keyword, p pair) {
					p.merged = true
					visit(k, p)
				})
			})
			continue
		}
		if k, ok := r.key(p, where); ok {
			visit(k, p)
		}
	}
}

// merged visits the maps that << names: one, or a list, whose first element wins and is therefore visited last.
func (r *reader) merged(n *yaml.Node, visit func(part *yaml.Node)) {
	t := target(n)
	parts := []*yaml.Node{n}
	if t.Kind == yaml.SequenceNode {
		if _, ok := r.enter(n); !ok {
			return
		}
		defer r.leave(n)
		parts = t.Content
	}
	for _, part := range slices.Backward(parts) {
		if target(part).Kind == yaml.MappingNode {
			visit(part)
		} else {
			r.fail(at(part), r.path(), "error loading config file: yaml: map merge requires map or sequence of maps as the value")
		}
	}
}

// key returns the keyword of a key that has an effect where it stands, and reports any other key.
func (r *reader) key(p pair, where place) (k keyword, ok bool) {
	n := target(p.key)
	k, known := r.grammar[n.Value]
	s := resolve(n)
	isText := s.kind == kindString
	if where == inPenalty && s.kind == kindBool && s.truth { // on, as YAML 1.1 has it, whose tools write true
		k, known = r.grammar[kwOn]
		isText = true
	}
	switch {
	case n.Kind != yaml.ScalarNode || !isText || !r.plainTag(n):
		r.fail(at(n), r.path(), "config error, key is not of type string: %s", brief(n))
	case !known:
		r.unknown(n, where)
	case k.where&where != 0:
		return k, true
	case k.ofReference:
		r.warn(at(n), r.path(), "key '%s' has no effect in %s: it belongs in %s", k.name, where, k.where&^inIgnored)
		r.ignored(k.name, p.value, maxIgnoredDepth)
	default:
		r.fail(at(n), r.path(), "config error, key '%s' does not belong in %s: it belongs in %s", k.name, where, k.where)
	}
	return keyword{}, false
}

func (r *reader) unknown(n *yaml.Node, where place) {
	if s := where.similar(n.Value); s != "" {
		r.fail(at(n), r.path(), "config error, unknown key '%s': did you mean '%s'?", Shorten(n.Value), s)
		return
	}
	r.fail(at(n), r.path(), "config error, unknown key '%s': %s takes %s", Shorten(n.Value), where, where.accepted())
}

// ignored checks the value of a key that has no effect as far as the reference does.
func (r *reader) ignored(k string, n *yaml.Node, depth int) {
	t := target(n)
	switch {
	case k == kwMetadata:
	case t.Kind == yaml.ScalarNode:
		r.scalar(n, wantQuotes)
	case depth == 0:
		r.fail(at(n), r.path(), "maps and lists are nested more than %d deep", maxIgnoredDepth)
	case t.Kind == yaml.MappingNode:
		r.pairs(n, inIgnored, func(k keyword, p pair) { r.ignored(k.name, p.value, depth-1) })
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

// list opens a list whose elements have to be maps. ok is false if n is not a list; null is an empty one.
func (r *reader) list(k string, n *yaml.Node) (items []*yaml.Node, leave func(), ok bool) {
	if r.isNull(n) {
		return nil, func() {}, true
	}
	if target(n).Kind != yaml.SequenceNode {
		want := "a list of maps"
		if k == kwRateLimits && target(n).Kind == yaml.MappingNode {
			want += ", or rate_limit for a single limit"
		}
		r.fail(at(n), r.path(), "error loading config file: cannot unmarshal %s into %s: want %s", describe(n), k, want)
		return nil, nil, false
	}
	m, ok := r.enter(n)
	if !ok {
		return nil, nil, false
	}
	return m.Content, func() { r.leave(n) }, true
}

// isElement returns whether an element of a list is a map, and reports an error if not.
func (r *reader) isElement(n *yaml.Node) bool {
	if t := target(n); t.Kind == yaml.MappingNode {
		return r.plainTag(t)
	}
	r.fail(at(n), r.path(), "config error, yaml file contains list of type other than map: %s", brief(n))
	return false
}

func (r *reader) isMapping(k string, n *yaml.Node) bool {
	if t := target(n); t.Kind == yaml.MappingNode {
		return r.plainTag(t)
	}
	want := "a map"
	if k == kwRateLimit && target(n).Kind == yaml.SequenceNode {
		want += ", or rate_limits for a list"
	}
	r.fail(at(n), r.path(), "error loading config file: cannot unmarshal %s into %s: want %s", describe(n), k, want)
	return false
}

func (r *reader) isNull(n *yaml.Node) bool {
	t := target(n)
	return t.Kind == yaml.ScalarNode && resolve(t).kind == kindNull
}

// describe returns a node for messages: its type, and the text of a scalar.
func describe(n *yaml.Node) string {
	n = target(n)
	if n.Kind == yaml.MappingNode {
		return "!!map"
	}
	if n.Kind == yaml.SequenceNode {
		return "!!seq"
	}
	return fmt.Sprintf("%s `%s`", resolve(n).kind, Shorten(n.Value))
}

// brief returns a node for messages, without its type.
func brief(n *yaml.Node) string {
	n = target(n)
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case resolve(n).kind == kindNull:
		return "<nil>"
	}
	return Shorten(n.Value)
}

// Shorten bounds the length of a file's text in a message.
func Shorten(s string) string {
	const most = 60
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// peek returns the text of a key's value in a map, for paths in messages; if the map is wrong it may be too.
func peek(n *yaml.Node, key string) (value string) {
	n = target(n)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if v := target(n.Content[i+1]); n.Content[i].Value == key && v.Kind == yaml.ScalarNode && resolve(v).kind != kindNull {
			value = v.Value
		}
	}
	return value
}
