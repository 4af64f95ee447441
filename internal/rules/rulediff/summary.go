package rulediff

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Tally is how many changes there are of each effect, in the order of [Effects].
type Tally [4]int

// Count counts a change of an effect.
func (t *Tally) Count(e Effect) {
	if i := slices.Index(Effects(), e); i >= 0 {
		t[i]++
	}
}

// Total returns how many changes there are.
func (t *Tally) Total() (n int) {
	for _, of := range t {
		n += of
	}
	return n
}

// String says how many changes there are, and of which effects.
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

// Summary is what is kept of the changes between two sets, of which there may be as many as rules: the first ones, and how many
// there are in each domain.
type Summary struct {
	first   []Change
	domains map[string]Tally
}

// SortChanges sorts changes by their effects, the most dangerous first.
func SortChanges(all []Change) {
	slices.SortStableFunc(all, func(a, b Change) int {
		return slices.Index(Effects(), a.Effect) - slices.Index(Effects(), b.Effect)
	})
}

// Summarize returns the summary of what changed from old, which may be nil, to now, with the most dangerous changes first, at most most of
// them, and never holds many more. Without changes it returns nil, which is a summary too.
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

// In returns the first changes in the domains that sees lets pass, and how many there are; nil lets all pass.
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

// Lines returns the first changes, at most most of them, each as the log of a reload has it, and how many there are beyond these.
func (s *Summary) Lines(most int) (lines []string, more int) {
	first, all := s.In(nil)
	for i := range first[:min(len(first), most)] {
		lines = append(lines, first[i].String())
	}
	return lines, all.Total() - len(lines)
}
