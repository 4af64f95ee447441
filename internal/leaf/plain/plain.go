// Package plain makes text of others safe to show, such as names in rules, values of requests and reasons of operators. The reader
// sees every character of it, and no terminal, shell or CI takes a part of it for a command. No other package does this.
//
// This package is part of the core.
package plain

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Text returns text on one line. What cannot be seen is written as in JSON, such as \n or \u001b, and a byte that is not UTF-8 as
// \xff. Text of the result is the result.
func Text(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, hidden) {
		return text
	}
	var b []byte
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		b = appendRune(b, r, text[i:i+size])
		i += size
	}
	return string(b)
}

// hidden reports whether a character cannot be seen. Beyond U+FFFF are no controls, but characters that are newer than this program.
func hidden(r rune) bool { return r <= 0xffff && !unicode.IsPrint(r) }

// appendRune appends a character, which is r, as [Text] has it.
func appendRune(b []byte, r rune, raw string) []byte {
	switch {
	case r == utf8.RuneError && len(raw) == 1:
		return fmt.Appendf(b, `\x%02x`, raw[0])
	case !hidden(r):
		return append(b, raw...)
	}
	if i := strings.IndexRune("\n\r\t", r); i >= 0 {
		return append(b, '\\', "nrt"[i])
	}
	return fmt.Appendf(b, `\u%04x`, r)
}

// Writer passes lines on as [Text] shows them, but with their line breaks and tabs. JSON stays the same JSON. Each Write has whole
// characters. It is safe for concurrent use.
type Writer struct {
	Raw io.Writer // takes data, such as CSV and scripts, and output for terminals
	// Actions is set where GitHub Actions reads the lines: none becomes a command then.
	Actions bool

	mu    sync.Mutex
	begun bool // the line has more than blanks
	last  rune
}

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out, text := make([]byte, 0, len(p)), string(p)
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case w.Actions && (r == ':' && !w.begun || r == '[' && w.last == '#'): // commands begin with :: or have ##[
			out = fmt.Appendf(out, `\u%04x`, r)
		case r == '\n', r == '\t':
			out = append(out, byte(r))
		default:
			out = appendRune(out, r, text[i:i+size])
		}
		w.begun, w.last = r != '\n' && (w.begun || r != ' ' && r != '\t'), r
		i += size
	}
	if _, err := w.Raw.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// IsWord reports whether shells take text as one word that is nothing but this text.
func IsWord(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("_.:/@=,+-", r)
	})
}

// Word returns text as one word of a command for sh, bash or zsh, in quotes if need be.
func Word(text string) string {
	if IsWord(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
