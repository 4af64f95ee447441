package rulefile

import (
	"iter"
	"strings"
)

const (
	maxCandidates = 10_000 // maximum number of candidates to compare
	longestName   = 40     // maximum length of a possibly misspelled name in bytes
)

// Nearest returns the candidate that name is probably a misspelling of, or "". It ignores case, hyphens and underscores.
func Nearest(name string, candidates iter.Seq[string]) string {
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

// distance returns the Levenshtein distance of two short names.
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
