package count

import (
	"regexp"
	"strings"
)

// Key names the counters of a rule: a domain and the levels of the rule's path. The zero Key names nothing.
//
// Text is the reference's name: the domain and the levels, joined with dots. As in the reference, Prometheus has the first two levels as
// labels and adds up keys that differ only in deeper levels.
type Key struct {
	Text string
	// Values of the labels. Key2 is empty if there is only one level.
	Domain, Key1, Key2 string
}

// NewKey returns the key of a domain and its levels, each of the form key or key_value. They may contain arbitrary bytes: U+FFFD replaces
// invalid UTF-8, and underscores replace characters with a meaning in statsd (colons, bars, and the dots of IPv4 addresses), as in the
// reference.
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

// Other replaces keys, domains and values beyond their maximum number.
const Other = "__other__"

// ipv4 matches an IPv4 address.
var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize converts s to a part of a statsd name.
func sanitize(s string) string {
	s = Underscores(strings.ToValidUTF8(s, "\uFFFD"), ":|")
	return ipv4.ReplaceAllStringFunc(s, func(ip string) string { return Underscores(ip, ".") })
}

// Underscores replaces each of the characters in s by an underscore.
func Underscores(s, characters string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(characters, c) {
			return '_'
		}
		return c
	}, s)
}
