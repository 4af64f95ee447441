package descriptors

import (
	"fmt"
	"iter"
	"strings"
)

const (
	maxCandidates = 10_000 // names that are compared with one that is unknown
	shownNames    = 5      // names that a message lists
	longestName   = 40     // bytes of a name that may be a misspelling
)

// Unknown says that there is no domain of that name, which one may have been meant, and which ones there are.
func (s *Set) Unknown(domain string) string {
	text := "no domain " + printable([]byte(Shorten(domain)))
	if len(s.domains) == 0 {
		return text + ": the rules have none"
	}
	return text + hint(domain, names(s.domains, func(d *Domain) string { return d.Name }))
}

// keys yields the keys of a level, in the order of the files.
func (l *level) keys() iter.Seq[string] {
	return names(l.groups, func(g *group) string { return g.key })
}

// values yields the values that are listed for a key, in the order of the files.
func (g *group) values() iter.Seq[string] {
	return names(g.exact, func(n *node) string { return n.value })
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

// hint is the end of a message about an unknown name: the one that it is probably a misspelling of, and the first few
// that there are. It is empty if there are none.
func hint(name string, known iter.Seq[string]) string {
	meant, listed, total := nearest(name, known), []string(nil), 0
	for k := range known {
		if total++; total <= shownNames {
			listed = append(listed, printable([]byte(Shorten(k))))
		}
	}
	text := ""
	if meant != "" {
		text = "; did you mean " + printable([]byte(Shorten(meant))) + "?"
	}
	switch {
	case total == 0 || meant != "" && total == 1:
		return text
	case total > shownNames:
		return fmt.Sprintf("%s (known: %s and %d more)", text, strings.Join(listed, ", "), total-shownNames)
	}
	return fmt.Sprintf("%s (known: %s)", text, strings.Join(listed, ", "))
}

// nearest returns the candidate that name is probably a misspelling of, or "". It ignores case, and hyphens and
// underscores.
func nearest(name string, candidates iter.Seq[string]) string {
	const most = 2
	plain := func(s string) string { return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(s)) }
	best, bestDistance, compared := "", most+1, 0
	wanted := plain(name)
	if len(wanted) > longestName {
		return ""
	}
	for c := range candidates {
		if compared++; compared > maxCandidates {
			break
		}
		if len(c) > 2*len(name)+most || len(name) > 2*len(c)+most {
			continue
		}
		if d := distance(wanted, plain(c)); d < bestDistance && d < len(name) {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance returns the Levenshtein distance of short names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, diagonal+cost)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
