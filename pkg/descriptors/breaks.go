package descriptors

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// More ends a line for a parser of YAML 1.1 than for people, editors and the survey: what they see as part of a comment may be a
// rule. So a file with such a character is refused, unless it is in quotes, where it is text and nothing else.

// findBreak returns where text has the first character that ends a line where people see none end, its length, and what it is called;
// -1 if there is none.
func findBreak(text []byte) (at, size int, name string) {
	for i := 0; i < len(text); i += size {
		var c rune
		switch c, size = utf8.DecodeRune(text[i:]); c {
		case '\r':
			if !bytes.HasPrefix(text[i:], []byte("\r\n")) {
				return i, size, "a CR (U+000D) without a LF"
			}
		case '\u0085':
			return i, size, "a NEL (U+0085)"
		case '\u2028':
			return i, size, "a line separator (U+2028)"
		case '\u2029':
			return i, size, "a paragraph separator (U+2029)"
		}
	}
	return -1, 0, ""
}

// maskBreaks returns text with as many underscores in place of such characters; text itself if it has none.
func maskBreaks(text []byte) []byte {
	at, size, _ := findBreak(text)
	if at < 0 {
		return text
	}
	masked := bytes.Clone(text)
	for from := 0; at >= 0; at, size, _ = findBreak(masked[from:]) {
		mask(masked[from+at : from+at+size])
		from += at + size
	}
	return masked
}

func mask(text []byte) { copy(text, bytes.Repeat([]byte("_"), len(text))) }

// strayBreak returns where text has the first such character outside of quotes, and what it is called; the zero mark if there is none.
// A parser says where quotes are once there are other characters in place of these.
func strayBreak(text []byte) (where mark, name string) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	at, _, name := findBreak(text)
	if at < 0 {
		return mark{}, ""
	}
	var doc yaml.Node
	if masked := maskBreaks(text); yaml.Unmarshal(masked, &doc) == nil {
		lines, rest := bytes.SplitAfter(masked, []byte("\n")), bytes.Clone(text)
		begins := make([]int, len(lines)) // of the lines
		for i := range lines[1:] {
			begins[i+1] = begins[i] + len(lines[i])
		}
		for _, n := range scalars(&doc) {
			if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
				begin := begins[n.Line-1] + quoteIn(lines[n.Line-1], n.Column)
				mask(rest[begin : begin+quotedLen(masked[begin:])])
			}
		}
		if at, _, name = findBreak(rest); at < 0 {
			return mark{}, ""
		}
	}
	before := text[:at]
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return mark{int32(bytes.Count(before, []byte("\n")) + 1), int32(column)}, name //nolint:gosec // MaxFileSize is less
}

// quoteIn returns where the quotes of a scalar begin that is in a column of a line, behind its anchor and its tag.
func quoteIn(line []byte, column int) (at int) {
	for ; column > 1; column-- {
		_, size := utf8.DecodeRune(line[at:])
		at += size
	}
	for at < len(line) && (line[at] == '&' || line[at] == '!') {
		for at < len(line) && !blank(line[at]) {
			at++
		}
		at += len(line[at:]) - len(bytes.TrimLeft(line[at:], " \t"))
	}
	return at
}

// quotedLen returns the length of what is in quotes at the beginning of text, with them; 0 if none are there.
func quotedLen(text []byte) int {
	if len(text) == 0 || text[0] != '"' && text[0] != '\'' {
		return 0
	}
	s := survey{text: text}
	for s.quoted(text[0]); text[0] == '\'' && s.i < len(text) && text[s.i] == '\''; { // which stand for one, and end nothing
		s.quoted('\'')
	}
	return s.i
}

// noBreak says what is wrong with such a character.
const noBreak = `%s ends a line for a parser of YAML, and not for those who read the file: remove it, or write it as \r, \N, \L or \P in double quotes`

// StrayBreak returns an error that names the first character of a text in YAML that ends a line where its readers see none end, unless
// it is in quotes; or nil.
func StrayBreak(text []byte) error {
	at, name := strayBreak(text)
	if name == "" {
		return nil
	}
	return errors.New(fmt.Sprintf("line %d: ", at.number()) + fmt.Sprintf(noBreak, name))
}
