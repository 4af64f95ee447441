package rulefile

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// A YAML 1.1 parser recognizes more line breaks than people and editors, so a part of an apparent comment may be a rule. A file
// with such a character is therefore invalid, unless the character is in quotes, where it is plain text.

// breaks returns these characters, except a CR before a LF, and their names.
func breaks() [][2]string {
	return [][2]string{
		{"\r", "a CR (U+000D) without a LF"},
		{"\u0085", "a NEL (U+0085)"},
		{"\u2028", "a line separator (U+2028)"},
		{"\u2029", "a paragraph separator (U+2029)"},
	}
}

// FindBreak returns the index and name of the first break in text, in which no CR precedes a LF; −1 if there is none.
func FindBreak(text []byte) (at int, name string) {
	at = -1
	for _, b := range breaks() {
		if i := bytes.Index(text, []byte(b[0])); i >= 0 && (at < 0 || i < at) {
			at, name = i, b[1]
		}
	}
	return at, name
}

// WithLF returns two texts of the same length: one with a blank in place of each CR before a LF, and one that also has underscores in
// place of breaks.
func WithLF(text []byte) (unix, masked []byte) {
	if unix = text; bytes.IndexByte(text, '\r') >= 0 {
		unix = bytes.ReplaceAll(text, []byte("\r\n"), []byte(" \n"))
	}
	masked = unix
	for _, b := range breaks() {
		if bytes.Contains(masked, []byte(b[0])) {
			masked = bytes.ReplaceAll(masked, []byte(b[0]), bytes.Repeat([]byte("_"), len(b[0])))
		}
	}
	return unix, masked
}

// strayBreak returns the position and name of the first break outside of quotes; the zero Mark if there is none. It determines the
// positions of quotes by parsing the text without breaks.
func strayBreak(text []byte) (where Mark, name string) {
	unix, masked := WithLF(bytes.TrimPrefix(text, []byte("\ufeff")))
	at, name := FindBreak(unix)
	if at < 0 {
		return Mark{}, ""
	}
	var doc yaml.Node
	if yaml.Unmarshal(masked, &doc) == nil {
		rest := bytes.Clone(unix)
		begin, line, column := 0, 1, 1
		for _, n := range Scalars(&doc) {
			if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) == 0 {
				continue
			}
			for ; line < n.Line; line, column = line+1, 1 {
				begin += bytes.IndexByte(masked[begin:], '\n') + 1
			}
			for ; column < n.Column; column++ {
				_, size := utf8.DecodeRune(masked[begin:])
				begin += size
			}
			end := quotesEnd(masked, begin)
			copy(rest[begin:end], masked[begin:end])
		}
		if at, name = FindBreak(rest); at < 0 {
			return Mark{}, ""
		}
	}
	before := unix[:at]
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return Mark{int32(bytes.Count(before, []byte("\n")) + 1), int32(column)}, name //nolint:gosec // MaxFileSize is less
}

// quotesEnd returns the end of the quotes at begin, or begin if an anchor or tag precedes the quotes.
func quotesEnd(text []byte, begin int) int {
	quote := text[begin]
	if quote != '"' && quote != '\'' {
		return begin
	}
	for i := begin + 1; i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote == '"':
			i++
		case text[i] == quote && quote == '\'' && i+1 < len(text) && text[i+1] == quote: // a doubled quote is an escaped quote
			i++
		case text[i] == quote:
			return i + 1
		}
	}
	return len(text)
}

// NoBreak is the message about a break.
const NoBreak = `%s ends a line for YAML parsers, but not in an editor: remove it, or write it as \r, \N, \L or \P in double quotes`

// StrayBreak returns an error for the first line break in YAML text that editors do not show as one, ignoring breaks in quotes; nil if
// there is none.
func StrayBreak(text []byte) error {
	at, name := strayBreak(text)
	if name == "" {
		return nil
	}
	return fmt.Errorf("line %d: "+NoBreak, at.Number(), name)
}

// Scalars returns the scalars and aliases in file order.
func Scalars(n *yaml.Node) (all []*yaml.Node) {
	var visit func(n *yaml.Node)
	visit = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode || n.Kind == yaml.AliasNode {
			all = append(all, n)
		}
		for _, c := range n.Content {
			visit(c)
		}
	}
	visit(n)
	return all
}
