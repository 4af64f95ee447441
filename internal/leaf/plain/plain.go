// Package plain makes untrusted text safe to display, such as names in rules, values in requests and operators' reasons. Every character
// is visible, and no terminal, shell or CI interprets a part of the text as a command. No other package does this.
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

// Text returns text as one line. Invisible characters are escaped as in JSON, such as \n or \u001b, and bytes that are not UTF-8 as \xff.
// Text is idempotent.
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

// hidden reports whether a character is invisible. Beyond U+FFFF there are no control characters, but characters newer than this program.
func hidden(r rune) bool { return r <= 0xffff && !unicode.IsPrint(r) }

// appendRune appends the rune r, encoded as raw, in the form of [Text].
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

// Writer writes lines in the form of [Text], but with line breaks and tabs. JSON keeps its meaning. Each Write must consist of complete
// characters. Writer is safe for concurrent use.
type Writer struct {
	Raw io.Writer // receives the output; use it directly for data, such as CSV and scripts, and for terminal control
	// Actions is set if GitHub Actions reads the lines. No line then becomes a command.
	Actions bool

	mu    sync.Mutex
	begun bool // the line has a character other than a blank or tab
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
		case w.Actions && (r == ':' && !w.begun || r == '[' && w.last == '#'): // commands begin with :: or contain ##[
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

// IsWord reports whether shells interpret text as a single literal word.
func IsWord(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		return !letter && !strings.ContainsRune("_.:/@=,+-", r)
	})
}

// Word returns text as one word of a command for sh, bash or zsh, in quotes if necessary.
func Word(text string) string {
	if IsWord(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
