package descriptors

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// shownNames is how many names a message lists.
const shownNames = 5

// Unknown says that there is no domain of that name, which one may have been meant, and which ones there are.
func (s *Set) Unknown(domain string) string {
	text := "no domain " + plain.Quoted([]byte(plain.Shorten(domain)))
	if len(s.domains) == 0 {
		return text + ": the rules have none"
	}
	return text + hint(domain, names(s.domains, func(d *Domain) string { return d.Name }))
}

// Unmet returns the first entry that keeps every rule from applying, whatever the other values are, and which keys the rules have in its
// place; no keys if it is only the value that none has. A nil value stands for any. If a rule may apply it returns −1; if only entries are
// missing at the end, their number.
func (d *Domain) Unmet(entries []Entry) (at int, known string) {
	levels, limited := []*Level{&d.root}, false
	for i := range entries {
		e := &entries[i]
		var below []*Level
		var keys []string
		met, named := false, false
		limited = false
		for _, l := range levels {
			keys = slices.AppendSeq(keys, l.keys())
			for _, n := range l.Nodes() {
				named = named || n.may(&Entry{Key: e.Key})
				if !n.may(e) {
					continue
				}
				met, limited = true, limited || n.Rule != nil
				if n.Children != nil {
					below = append(below, n.Children)
				}
			}
		}
		switch levels = below; {
		case !met && named:
			return i, ""
		case !met:
			return i, cmp.Or(hint(string(e.Key), slices.Values(keys)), " (the rules end before it)")
		}
	}
	if !limited {
		return len(entries), ""
	}
	return -1, ""
}

// may reports whether n is for an entry, of which a nil value stands for any.
func (n *Node) may(e *Entry) bool {
	switch {
	case n.keyGlob == nil && n.Key != string(e.Key), n.keyGlob != nil && !n.keyGlob.Match(e.Key):
		return false
	case n.valueGlob != nil && e.Value != nil:
		return n.valueGlob.Match(e.Value)
	}
	return e.Value == nil || n.Value == "" || n.Value == string(e.Value)
}

// keys yields the keys of a level, in the order of the files.
func (l *Level) keys() iter.Seq[string] {
	return names(l.groups, func(g *group) string { return g.key })
}

// values yields the values that are listed for a key, in the order of the files.
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

// hint is the end of a message about an unknown name: the one that it is probably a misspelling of, and the first few
// that there are. It is empty if there are none.
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
