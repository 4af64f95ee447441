// Package rulefmt implements `ratelimitd fmt`, which formats rule files.
//
// This package is optional: the core works without it.
package rulefmt

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// maxFlow is the maximum length of a map or list in braces or brackets, in characters from the start of its line.
const maxFlow = 120

// Format formats a file of rules like `ratelimitd fmt`: keys in a fixed order, two blanks for each level, all comments in
// their places, and at most single blank lines. Maps and lists in braces or brackets stay unchanged unless they are too
// long. The result has the same meaning, and formatting it again changes nothing. A file that cannot be read or formatted
// like this is a problem.
func Format(s rulefile.Source) ([]byte, rulefile.Problems) {
	r := &rulefile.Reader{Report: rulefile.Report{File: s.Name}, Grammar: rulefile.NewGrammar()}
	if !r.Sound(s.Data) {
		return nil, r.Problems
	}
	unix, _ := rulefile.WithLF(s.Data)
	if _, name := rulefile.FindBreak(unix); name != "" { // inside quotes, where this package counts lines differently
		r.Fail(rulefile.Mark{}, "", "not changed: "+rulefile.NoBreak, name)
		return nil, r.Problems
	}
	head, body := cutHead(s.Data)
	out, err := formatBody(r, s.Data, body)
	if err == nil && out == nil {
		if len(r.Problems) > 0 {
			return nil, r.Problems
		}
		return s.Data, nil // only comments
	}
	var again []byte
	if err == nil {
		again, err = formatBody(r, s.Data, out)
	}
	if err == nil && !bytes.Equal(out, again) {
		err = errors.New("formatting would move its comments every time")
	}
	if err == nil {
		err = sameText(body, out)
	}
	if err != nil {
		r.Fail(rulefile.Mark{}, "", "not changed: %v", err)
		return nil, r.Problems
	}
	return append(head, out...), nil
}

// cutHead splits a file before its first content. The head, comments and the start of the document, is unchanged except
// for repeated blank lines.
func cutHead(data []byte) (head, body []byte) {
	data = bytes.ReplaceAll(bytes.TrimPrefix(data, []byte("\ufeff")), []byte("\r\n"), []byte("\n"))
	for len(data) > 0 {
		line, rest, _ := bytes.Cut(data, []byte("\n"))
		line = bytes.TrimRight(line, " \t")
		text := bytes.TrimLeft(line, " \t")
		if len(text) > 0 && text[0] != '#' && string(line) != "---" {
			break
		}
		data = rest
		if len(text) > 0 || len(head) > 0 && !bytes.HasSuffix(head, []byte("\n\n")) {
			head = append(append(head, text...), '\n')
		}
	}
	return head, data
}

// formatBody formats the file after its head. The result is nil if the body is empty, or if r has a problem.
func formatBody(r *rulefile.Reader, whole, body []byte) ([]byte, error) {
	f := formatter{rows: r.Grammar}
	before, err := oneDocument(body)
	doc := before
	if err == nil && before != nil {
		var marked []byte
		marked, f.blank = markBlanks(before, body)
		doc, err = oneDocument(marked)
	}
	if err != nil {
		var first yaml.Node
		if e := yaml.NewDecoder(bytes.NewReader(whole)).Decode(&first); e != nil && !errors.Is(e, io.EOF) {
			err = e // has line numbers of the file
		}
		r.Syntax(whole, err)
		return nil, nil
	}
	if doc == nil {
		return nil, nil
	}
	if len(doc.Content) == 0 || rulefile.Target(doc.Content[0]).Kind != yaml.MappingNode {
		return nil, errors.New("it is not a map with domain and descriptors")
	}
	if r.IsManifest(doc.Content[0]) {
		return nil, nil
	}
	f.tidy(doc.Content[0])
	untag(doc)
	out, err := f.encode(doc)
	for range maxDepthOfFlow {
		if err != nil || !f.breakFlow(doc.Content[0], out) {
			break
		}
		out, err = f.encode(doc)
	}
	if err != nil {
		return nil, err
	}
	out = f.unmark(out)
	now, err := oneDocument(out)
	if err != nil || now == nil {
		return nil, fmt.Errorf("the formatted file would not be readable: %w", err)
	}
	if f.tidy(before); !alike(before, now) {
		return nil, errors.New("formatting would change its meaning")
	}
	return out, nil
}

// maxDepthOfFlow is the maximum number of levels at which flow maps and lists are broken, from the outermost.
const maxDepthOfFlow = 100

// markBlanks replaces each blank line of body outside of texts by a comment, which it also returns, because yaml.v3 keeps only
// comments.
func markBlanks(doc *yaml.Node, body []byte) (marked []byte, blank string) {
	for blank = "#blank"; bytes.Contains(body, []byte(blank)); {
		blank += "+"
	}
	lines := bytes.Split(bytes.TrimRight(body, " \t\n"), []byte("\n"))
	texts := textLines(doc, lines)
	for i := range lines {
		if len(bytes.TrimSpace(lines[i])) > 0 || texts[i] {
			continue
		}
		next := i
		for next < len(lines)-1 && len(bytes.TrimSpace(lines[next])) == 0 {
			next++
		}
		if next == i+1 && !texts[next] { // of consecutive ones, the last
			indent := len(lines[next]) - len(bytes.TrimLeft(lines[next], " "))
			lines[i] = append(bytes.Repeat([]byte(" "), indent), blank...)
		}
	}
	return append(bytes.Join(lines, []byte("\n")), '\n'), blank
}

// oneDocument parses a file with one document. It returns nil for an empty file.
func oneDocument(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc, second yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return nil, err
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("yaml: it has a second document, which has no effect: remove it, or move it to a file of its own")
	}
	return &doc, nil
}

// textLines marks the lines of multi-line scalars, from their second line up to the next node.
func textLines(doc *yaml.Node, lines [][]byte) map[int]bool {
	all := rulefile.Scalars(doc)
	in := map[int]bool{}
	for i, n := range all {
		end := len(lines)
		if i+1 < len(all) {
			end = min(all[i+1].Line-1, len(lines)) // an omitted value may be after the last line
		}
		block := n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0
		if block && !bytes.Contains(lines[n.Line-1], []byte("+")) {
			end = textEnd(lines, end)
		}
		if block || goesOn(lines[min(n.Line, end):end]) {
			for line := n.Line; line < end; line++ { // after the first
				in[line] = true
			}
		}
	}
	return in
}

// goesOn reports whether one of the lines after a scalar's first may belong to it.
func goesOn(lines [][]byte) bool {
	return slices.ContainsFunc(lines, func(line []byte) bool {
		text := bytes.TrimSpace(line)
		return len(text) > 0 && bytes.IndexByte([]byte("#]}-"), text[0]) < 0
	})
}

// textEnd returns the end of a block text that does not keep trailing blank lines: before the blank lines and comments
// that precede the next node, which is in the line end.
func textEnd(lines [][]byte, end int) int {
	if end >= len(lines) {
		return end
	}
	indent := func(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " ")) }
	most := indent(lines[end])
	for end > 0 {
		line := lines[end-1]
		text := bytes.TrimSpace(line)
		if len(text) > 0 && (text[0] != '#' || indent(line) > most) {
			break
		}
		end--
	}
	return end
}

// formatter formats one document.
type formatter struct {
	rows  rulefile.Grammar
	blank string // comment in place of a blank line
}

func (f *formatter) encode(doc *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(doc); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}

// unmark restores the blank lines.
func (f *formatter) unmark(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		trimmed := strings.TrimSpace(string(line))
		switch {
		case trimmed != f.blank && trimmed != "":
			out = append(out, line...)
		case trimmed == "" && !bytes.HasSuffix(bytes.TrimRight(line, "\n"), []byte(" ")), trimmed == f.blank:
			if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n\n")) {
				out = append(out, '\n')
			}
		}
	}
	return append(bytes.TrimRight(out, "\n"), '\n')
}

// tidy orders the keys of all maps below n.
func (f *formatter) tidy(n *yaml.Node) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == rulefile.KeyMetadata {
			continue // its values may be anything
		}
		f.tidy(c)
	}
	if n.Kind == yaml.MappingNode {
		f.order(n)
		f.open(n)
	}
	for _, item := range n.Content {
		if n.Kind == yaml.SequenceNode && item.Kind == yaml.MappingNode && len(item.Content) > 0 && item.Style&yaml.FlowStyle == 0 {
			f.lift(item)
		}
	}
}

// untag removes tags that yaml.v3 would write although files omit them.
func untag(n *yaml.Node) {
	if n.Tag == "!!merge" && n.Style&yaml.TaggedStyle == 0 {
		n.Tag = ""
	}
	for _, c := range n.Content {
		untag(c)
	}
}

// open removes blank lines above the first key of a map, which may come from another place.
func (f *formatter) open(n *yaml.Node) {
	if len(n.Content) > 0 {
		first := n.Content[0]
		for strings.HasPrefix(first.HeadComment, f.blank) {
			first.HeadComment = strings.TrimLeft(strings.TrimPrefix(first.HeadComment, f.blank), "\n")
		}
	}
}

// lift moves the comment above the first key of a list's element above the element.
func (f *formatter) lift(item *yaml.Node) {
	first := item.Content[0]
	var above []string
	for _, c := range []string{item.HeadComment, first.HeadComment} {
		if c != "" {
			above = append(above, c)
		}
	}
	item.HeadComment, first.HeadComment = strings.Join(above, "\n"), ""
}

// order orders the keys of a map, unless this would change the meaning of a merge or an anchor.
func (f *formatter) order(n *yaml.Node) {
	type entry struct {
		key, value *yaml.Node
		was        int
	}
	var entries []entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag == "!!merge" && i > 0 {
			return
		}
		entries = append(entries, entry{n.Content[i], n.Content[i+1], i})
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(f.rank(a.key), f.rank(b.key)) })
	last := 0
	for _, e := range entries {
		if !tied(e.key) && !tied(e.value) {
			continue
		}
		if e.was < last {
			return
		}
		last = e.was
	}
	for i, e := range entries {
		n.Content[2*i], n.Content[2*i+1] = e.key, e.value
	}
}

// tied reports whether n contains anchors or aliases, whose order must not change.
func tied(n *yaml.Node) bool {
	return n.Anchor != "" || n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, tied)
}

// rank returns the position of a key. Merges come first, and unknown keys, in their order, before the last keys of the grammar.
func (f *formatter) rank(key *yaml.Node) int {
	const most = 1000 // exceeds the number of rows
	rows := f.rows[key.Value]
	switch {
	case key.Tag == "!!merge":
		return math.MinInt
	case rows == nil:
		return most
	}
	return rows[0].Rank*2*most + rows[0].Index
}

// breakFlow splits the outermost maps and lists in braces or brackets that are too long or have comments into lines. It
// reports whether it found any.
func (f *formatter) breakFlow(n *yaml.Node, out []byte) (broke bool) {
	var formatted yaml.Node
	if yaml.Unmarshal(out, &formatted) != nil || len(formatted.Content) == 0 {
		return false
	}
	lines := bytes.Split(out, []byte("\n"))
	var visit func(n, now *yaml.Node)
	visit = func(n, now *yaml.Node) {
		if n.Style&yaml.FlowStyle != 0 && len(n.Content) > 0 {
			last := now
			for len(last.Content) > 0 {
				last = last.Content[len(last.Content)-1]
			}
			if last.Line != now.Line || utf8.RuneCount(lines[now.Line-1]) > maxFlow {
				n.Style &^= yaml.FlowStyle
				broke = true
			}
			return
		}
		for i := range min(len(n.Content), len(now.Content)) {
			visit(n.Content[i], now.Content[i])
		}
	}
	visit(n, formatted.Content[0])
	return broke
}

// alike reports whether two documents with ordered keys are equal.
func alike(a, b *yaml.Node) bool {
	return a.Kind == b.Kind && a.Value == b.Value && a.Tag == b.Tag && a.Anchor == b.Anchor && quoted(a) == quoted(b) &&
		slices.EqualFunc(a.Content, b.Content, alike)
}

// quoted reports whether a scalar is text in any case.
func quoted(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) != 0
}

// sameText returns an error unless two texts have the same characters, so that no comment is lost. It ignores characters
// that YAML may write differently.
func sameText(a, b []byte) error {
	count := func(text []byte) map[rune]int {
		n := map[rune]int{}
		for _, c := range string(text) {
			if !strings.ContainsRune(" \t\r\n{}[],-'\"\\|>?+", c) {
				n[c]++
			}
		}
		return n
	}
	if !maps.Equal(count(a), count(b)) {
		return errors.New("formatting would lose part of a comment or a string")
	}
	return nil
}
