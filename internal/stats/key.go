package stats

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key names the counters of a rule: a domain, and the levels of the tree below it. The zero Key names nothing.
//
// Text is the reference's name, domain and levels joined with dots. Prometheus shows the first two levels as labels
// and sums what differs only further down, as the reference does.
type Key struct {
	Text string
	// What the labels show. Key2 is empty where there is one level.
	Domain, Key1, Key2 string
}

// NewKey makes the key of a domain and the levels below it, each of the form key or key_value. They may hold any bytes:
// what is no UTF-8 becomes U+FFFD, and what statsd gives a meaning to (colons, bars, the dots of an IPv4 address)
// an underscore, as in the reference.
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

// Other stands in the place of every key, domain or value beyond a bound on their number.
const Other = "__other__"

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize makes one part of a statsd name of s.
func sanitize(s string) string {
	s = underscores(strings.ToValidUTF8(s, "\uFFFD"), ":|")
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return underscores(ip, ".") })
}

// TagName is a name of a series with tags as the reference writes them into it: name.__tag=value, in the order given.
// Tags without a name or a value are left out.
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

// TagValue makes the value of a statsd tag of s: dots, colons and bars become underscores, as in the reference.
func TagValue(s string) string { return underscores(strings.ToValidUTF8(s, "\uFFFD"), ".:|") }

// OneLine keeps s from ending the line that it stands in.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' {
			return '_'
		}
		return c
	}, s)
}

// underscores puts an underscore in the place of each of the characters.
func underscores(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(characters, c) {
			return '_'
		}
		return c
	}, s)
}

// metricName makes a Prometheus name of a statsd name: what such a name cannot hold becomes an underscore.
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
