package plain

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Shorten truncates a text from a file to a length suitable for a message.
func Shorten(s string) string { return Cut(s, 60) }

// Cut truncates s to at most most bytes and appends an ellipsis if it did. The result is valid UTF-8.
func Cut(s string, most int) string {
	end := ""
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s, end = s[:most], "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD") + end
}

// Quoted formats a text from a request for people. It adds quotes unless the text is readable without them.
func Quoted(b []byte) string {
	s := fmt.Sprintf("%q", b)
	if inner := s[1 : len(s)-1]; inner == string(b) && inner != "" {
		return inner
	}
	return s
}
