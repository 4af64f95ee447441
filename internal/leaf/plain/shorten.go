package plain

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Shorten cuts a text of a file to a length that fits into a message.
func Shorten(s string) string { return Cut(s, 60) }

// Cut cuts a text to so many bytes, and returns valid UTF-8.
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

// Quoted returns a text of a request for people. It is in quotes, unless it can be read as it is.
func Quoted(b []byte) string {
	s := fmt.Sprintf("%q", b)
	if inner := s[1 : len(s)-1]; inner == string(b) && inner != "" {
		return inner
	}
	return s
}
