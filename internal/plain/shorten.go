package plain

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Shorten cuts a text of a file to a length that fits into a message.
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

// Quoted returns a text of a request for people. It is in quotes, unless it can be read as it is.
func Quoted(b []byte) string {
	s := fmt.Sprintf("%q", b)
	if inner := s[1 : len(s)-1]; inner == string(b) && inner != "" {
		return inner
	}
	return s
}
