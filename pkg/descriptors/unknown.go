package descriptors

import (
	"fmt"
	"iter"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// shownNames is the maximum number of names that a message lists.
const shownNames = 5

// Unknown describes the absence of a domain, with suggestions from the existing domains.
func (s *Set) Unknown(domain string) string {
	text := "no domain " + plain.Quoted([]byte(plain.Shorten(domain)))
	if len(s.domains) == 0 {
		return text + ": the rules have none"
	}
	return text + hint(domain, names(s.domains, func(d *Domain) string { return d.Name }))
}

// keys yields the keys of a level in file order.
func (l *Level) keys() iter.Seq[string] {
	return names(l.groups, func(g *group) string { return g.key })
}

// values yields the values of a key in file order.
func (g *group) values() iter.Seq[string] {
	return names(g.exact, func(n *Node) string { return n.Value })
}

// names yields the name of each element.
func names[E any](all []E, name func(E) string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, e := range all {
			if !yield(name(e)) {
				return
			}
		}
	}
}

// hint returns the end of a message about an unknown name: the probably intended name, and the first few existing ones. It is empty if
// there are none.
func hint(name string, known iter.Seq[string]) string {
	meant, listed, total := rulefile.Nearest(name, known), []string(nil), 0
	for k := range known {
		if total++; total <= shownNames {
			listed = append(listed, plain.Quoted([]byte(plain.Shorten(k))))
		}
	}
	text := ""
	if meant != "" {
		text = "; did you mean " + plain.Quoted([]byte(plain.Shorten(meant))) + "?"
	}
	switch {
	case total == 0 || meant != "" && total == 1:
		return text
	case total > shownNames:
		return fmt.Sprintf("%s (known: %s and %d more)", text, strings.Join(listed, ", "), total-shownNames)
	}
	return fmt.Sprintf("%s (known: %s)", text, strings.Join(listed, ", "))
}
