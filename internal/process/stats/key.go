package stats

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key names the counters of a rule: a domain, and the levels of the tree of rules below it. The zero Key names nothing.
//
// Text is the reference's name: the domain and the levels, joined with dots. Prometheus shows the first two levels as
// labels and adds up keys that differ only in deeper levels, as the reference does.
type Key struct {
	Text string
	// The values of the labels. Key2 is empty if there is only one level.
	Domain, Key1, Key2 string
}

// NewKey returns the key of a domain and the levels below it, each of the form key or key_value. They may contain any
// bytes: invalid UTF-8 becomes U+FFFD, and characters with a meaning in statsd (colons, bars, the dots of an IPv4
// address) become underscores, as in the reference.
func NewKey(domain string, levels ...string) Key {
	k := Key{Domain: sanitize(domain)}
	var b strings.Builder
	b.WriteString(k.Domain)
	for i, l := range levels {
		l = sanitize(l)
		switch i {
		case 0:
			k.Key1 = l
		case 1:
			k.Key2 = l
		}
		b.WriteByte('.')
		b.WriteString(l)
	}
	k.Text = b.String()
	return k
}

// Other replaces every key, domain or value beyond the maximum number of them.
const Other = "__other__"

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize turns s into one part of a statsd name.
func sanitize(s string) string {
	s = Underscores(strings.ToValidUTF8(s, "\uFFFD"), ":|")
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return Underscores(ip, ".") })
}

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
func TagValue(s string) string { return Underscores(strings.ToValidUTF8(s, "\uFFFD"), ".:|") }

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

// Underscores replaces each of the characters by an underscore.
func Underscores(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(characters, c) {
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
