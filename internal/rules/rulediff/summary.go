package rulediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Tally is the numbers of changes by effect, in the order of [Effects].
type Tally [4]int

// Count counts a change.
func (t *Tally) Count(e Effect) {
	if i := slices.Index(Effects(), e); i >= 0 {
		t[i]++
	}
}

// Total returns the number of changes.
func (t *Tally) Total() (n int) {
	for _, of := range t {
		n += of
	}
	return n
}

// String formats the number of changes, and the numbers by effect.
func (t *Tally) String() string {
	var parts []string
	for i, e := range Effects() {
		if text := e.Text(); t[i] > 0 && text != "" {
			verb, rest, _ := strings.Cut(text, " ")
			if t[i] > 1 {
				verb = strings.TrimSuffix(verb, "s")
			}
			parts = append(parts, fmt.Sprintf("%d %s %s", t[i], verb, rest))
		}
	}
	text := descriptors.CountText(t.Total(), "change")
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// Summary keeps the first changes between two sets, and counts by domain. There may be as many changes as rules.
type Summary struct {
	first   []Change
	domains map[string]Tally
}

// SortChanges sorts changes by effect, most dangerous first.
func SortChanges(all []Change) {
	slices.SortStableFunc(all, func(a, b Change) int {
		return slices.Index(Effects(), a.Effect) - slices.Index(Effects(), b.Effect)
	})
}

// Summarize returns a summary of the changes from old, which may be nil, to now, with at most most changes, most dangerous first. It
// never holds many more. Without changes it returns nil, which is a valid summary.
func Summarize(old, now *descriptors.Set, most int) *Summary {
	sum := &Summary{domains: map[string]Tally{}}
	var held Tally
	eachChange(old, now, func(c Change) {
		t := sum.domains[c.Domain]
		t.Count(c.Effect)
		sum.domains[c.Domain] = t
		if i := slices.Index(Effects(), c.Effect); i >= 0 && held[i] < most {
			held[i]++
			sum.first = append(sum.first, c)
		}
	})
	if len(sum.domains) == 0 {
		return nil
	}
	SortChanges(sum.first)
	sum.first = slices.Clone(sum.first[:min(len(sum.first), most)])
	return sum
}

// In returns the kept changes in the domains for which sees returns true, and the numbers of all changes in them. A nil
// sees selects all domains.
func (s *Summary) In(sees func(domain string) bool) (first []Change, all Tally) {
	if s == nil {
		return nil, all
	}
	for domain, t := range s.domains {
		if sees != nil && !sees(domain) {
			continue
		}
		for i := range t {
			all[i] += t[i]
		}
	}
	for i := range s.first {
		if sees == nil || sees(s.first[i].Domain) {
			first = append(first, s.first[i])
		}
	}
	return first, all
}

// Lines returns at most most kept changes, formatted for the log of a reload, and the number of others.
func (s *Summary) Lines(most int) (lines []string, more int) {
	first, all := s.In(nil)
	for i := range first[:min(len(first), most)] {
		lines = append(lines, first[i].String())
	}
	return lines, all.Total() - len(lines)
}
