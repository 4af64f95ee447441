package stats

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// TagName returns the name of a series with its tags written into it as the reference does: name.__tag=value, in the
// order given. Tags without a name or a value are omitted.
func TagName(name string, tags []Label) string {
	var b strings.Builder
	b.WriteString(name)
	for _, t := range tags {
		if t.Name != "" && t.Value != "" {
			b.WriteString(".__" + t.Name + "=" + TagValue(t.Value))
		}
	}
	return b.String()
}

// TagValue turns s into the value of a statsd tag: dots, colons and bars become underscores, as in the reference.
func TagValue(s string) string { return count.Underscores(strings.ToValidUTF8(s, "\uFFFD"), ".:|") }

// OneLine replaces by underscores what ends a line or what a terminal obeys: control characters, line separators and those that turn
// the direction of text.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' || unicode.Is(unicode.Bidi_Control, c) {
			return '_'
		}
		return c
	}, s)
}

// metricName turns a statsd name into a Prometheus name: characters that are not allowed there become underscores.
func metricName(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for i, c := range s {
		letter := c < utf8.RuneSelf && (unicode.IsLetter(c) || c == '_')
		digit := '0' <= c && c <= '9'
		if letter || digit && i > 0 {
			b.WriteRune(c)
		} else {
			b.WriteByte('_')
		}
	}
	return b.String()
}
