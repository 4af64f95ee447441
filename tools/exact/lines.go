package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// line is an event in a printed history.
type line struct {
	from, to proof.Micros
	replica  string // called replica; empty if irrelevant
	text     string
	hits     int64
	weight   weight
}

// weight is the importance of an event. Long histories omit events of low weight.
type weight uint8

const (
	reads  weight = iota // should not have changed anything
	writes               // may have written
	counts               // its hits are part of the excess
)

func weightOf(c *proof.Call) weight {
	if c.Kind == proof.Peek || c.Outcome == proof.Rejected {
		return reads
	}
	return writes
}

// mostLines is the maximum number of printed lines, unless more lines count.
const mostLines = 40

// callText describes a call without its hits.
func callText(c *proof.Call) string {
	what := [...]string{proof.Take: "take", proof.Peek: "look", proof.Refund: "refund"}[c.Kind]
	if c.Note != "" {
		what = c.Note
	}
	answer := [...]string{proof.Unanswered: "no answer", proof.Admitted: "OK", proof.Rejected: "OVER_LIMIT"}[c.Outcome]
	names := make([]string, 0, len(c.Under))
	for _, s := range c.Under {
		names = append(names, s.Name)
	}
	names = slices.Compact(names)
	text := fmt.Sprintf("%s: %s", strings.Join(names, " or "), what)
	if c.Owner != "" {
		text += " by " + c.Owner
	}
	return text + ": " + answer
}

// printLines prints lines in the order of their ends.
func printLines(w io.Writer, lines []line, zero proof.Micros) {
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.to, b.to) })
	all := merge(lines)
	for _, less := range []struct {
		without string
		weight  weight
		anyone  bool
	}{{"looks, and what was rejected", writes, false}, {"what does not count", counts, false}, {"the replicas that were called", counts, true}} {
		if len(all) <= mostLines {
			break
		}
		fmt.Fprintf(w, "    without %s\n", less.without)
		lines = slices.DeleteFunc(lines, func(l line) bool { return l.weight < less.weight })
		for i := range lines {
			if less.anyone {
				lines[i].replica = ""
			}
		}
		all = merge(lines)
	}
	for _, l := range all {
		mark := " "
		if l.weight == counts {
			mark = "+"
		}
		fmt.Fprintf(w, "  %s %11s to %11s s  %s%s", mark, seconds(l.from-zero), seconds(l.to-zero), l.replica, l.text)
		if l.hits > 0 {
			fmt.Fprintf(w, ", %d hits", l.hits)
		}
		if l.calls > 1 {
			fmt.Fprintf(w, " in %d calls", l.calls)
		}
		fmt.Fprintln(w)
	}
}

// merged is a line for consecutive equal lines.
type merged struct {
	line

	calls int
}

func merge(lines []line) []merged {
	var all []merged
	for _, l := range lines {
		if n := len(all); n > 0 && all[n-1].replica == l.replica && all[n-1].text == l.text && all[n-1].weight == l.weight {
			m := &all[n-1]
			m.calls, m.hits, m.from, m.to = m.calls+1, m.hits+l.hits, min(m.from, l.from), l.to
			continue
		}
		all = append(all, merged{l, 1})
	}
	return all
}

func seconds(m proof.Micros) string { return fmt.Sprintf("%+.6f", float64(m)/1e6) }
