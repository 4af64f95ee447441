package count

import (
	"regexp"
	"strings"
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

// Underscores replaces each of the characters by an underscore.
func Underscores(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(characters, c) {
			return '_'
		}
		return c
	}, s)
}
