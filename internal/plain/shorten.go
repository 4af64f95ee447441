package plain

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

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

// Quoted returns text of a request in a form fit for people, quoted if need be.
func Quoted(b []byte) string {
	s := fmt.Sprintf("%q", b)
	if inner := s[1 : len(s)-1]; inner == string(b) && inner != "" {
		return inner
	}
	return s
}
