package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// tally sums the results of campaigns.
type tally struct {
	campaigns, deadly, found int
	calls, unanswered        int
	admitted                 int64
	counted                  int
}

func (t *tally) text() string {
	return fmt.Sprintf("%d campaigns, %d of them with dying replicas: %d calls, %d without an answer, %d hits admitted, %d counters accounted for: %d findings",
		t.campaigns, t.deadly, t.calls, t.unanswered, t.admitted, t.counted, t.found)
}

// err returns an error if there are findings.
func (t *tally) err() error {
	if t.found > 0 {
		return errFound
	}
	return nil
}

// report prints violations and a summary of the campaign.
func (p *played) report(w io.Writer, sum *tally) {
	before := sum.found
	for _, r := range p.rounds {
		for _, e := range r.excesses {
			sum.found++
			r.excess(w, p, e)
		}
		for _, m := range r.mismatches {
			sum.found++
			r.mismatch(w, p, m)
		}
		r.add(sum)
	}
	p.named.report(w, p, sum)
	for _, text := range p.owing {
		sum.found++
		fmt.Fprintf(w, "FOUND in %s: %s\n", p.campaign, text)
	}
	sum.campaigns++
	if p.deadly {
		sum.deadly++
	}
	outcome := "ok"
	switch {
	case sum.found > before:
		outcome = fmt.Sprintf("%d findings; again with make exact SEED=%d", sum.found-before, p.seed)
	case p.jumped < -1000 || p.jumped > 1000:
		outcome = fmt.Sprintf("proves nothing, the clock was set by %d µs", p.jumped)
	}
	fmt.Fprintf(w, "%s: %s\n", p.campaign, outcome)
}

// add adds the round's calls to sum.
func (r *round) add(sum *tally) {
	sum.calls += len(r.calls)
	sum.counted += r.counted
	for i := range r.calls {
		switch c := &r.calls[i]; {
		case c.Outcome == proof.Unanswered:
			sum.unanswered++
		case c.Kind == proof.Take && c.Outcome == proof.Admitted:
			sum.admitted += c.Hits
		}
	}
}

// settings prints the game.
func (r *round) settings(w io.Writer) {
	for i, rule := range r.game.rules {
		var on []string
		for k, s := range r.serve {
			if s == i {
				on = append(on, fmt.Sprint(k+1))
			}
		}
		where := ""
		if len(on) > 0 && len(r.game.rules) > 1 {
			where = " (at first on replica " + strings.Join(on, ", ") + ")"
		}
		if rule.holder {
			where += " (slots have owners)"
		}
		fmt.Fprintf(w, "  %-8s %s%s\n", rule.name, rule.text(), where)
	}
	for _, o := range r.overrides {
		fmt.Fprintf(w, "  override %d per %s\n", o.hits, o.unit)
	}
	if r.reload > 0 {
		fmt.Fprintf(w, "  a replica is given another of these rules every %v\n", r.reload)
	}
	for i, q := range r.quiet {
		if q {
			fmt.Fprintf(w, "  replica %d is only looked at\n", i+1)
		}
	}
}

// excess prints an excess with its settings and the shortest history that proves it.
func (r *round) excess(w io.Writer, p *played, e *proof.Excess) {
	fmt.Fprintf(w, "FOUND in %s: %s: more admitted than may be, by the %s counter\n", p.campaign, r.title, e.Counter)
	r.settings(w)
	fmt.Fprintf(w, "  %s:\n", e.Promise)
	fmt.Fprintf(w, "  %s in the worst span, and %s in the shortest history that proves it:\n", span(&e.Worst), span(&e.Shortest))
	r.history(w, p, e)
}

func span(s *proof.Span) string {
	return fmt.Sprintf("%d hits in %v where %.1f may be", s.Hits, time.Duration(s.To-s.From)*time.Microsecond, s.Most)
}

// history prints the calls of an excess and the other calls on the counter during it.
func (r *round) history(w io.Writer, p *played, e *proof.Excess) {
	proves := map[*proof.Call]bool{}
	from, to := e.Calls[0].Sent, e.Calls[0].Done
	for _, c := range e.Calls {
		proves[c] = true
		from, to = min(from, c.Sent), max(to, c.Done)
	}
	var lines []line
	for i := range r.calls {
		c := &r.calls[i]
		if c.Done < from || c.Sent > to {
			continue
		}
		l := line{c.Sent, c.Done, fmt.Sprintf("replica %d, ", c.Replica), callText(c), c.Hits, weightOf(c)}
		if proves[c] {
			l.weight = counts
		}
		if e.Turns && proves[c] {
			l.text += fmt.Sprintf(", its turn after %v", time.Duration(c.Wait)*time.Microsecond)
		}
		lines = append(lines, l)
	}
	for _, x := range p.events {
		if x.at >= from && x.at <= to {
			lines = append(lines, line{x.at, x.at, "", x.text, 0, writes})
		}
	}
	printLines(w, lines, from)
}

// mismatch prints a mismatch.
func (r *round) mismatch(w io.Writer, p *played, m *proof.Mismatch) {
	what := "hits were lost"
	if m.Seen.Left > m.Most {
		what = "hits were not counted"
	}
	fmt.Fprintf(w, "FOUND in %s: %s: %s, by the %s counter\n", p.campaign, r.title, what, m.Counter)
	r.settings(w)
	fmt.Fprintf(w, "  admitted %d hits, refunded %d, of unknown outcome %d; so of %d there should be left %d",
		m.Spent, m.Given, m.Unsure, m.Capacity, m.Least)
	if m.Most > m.Least {
		fmt.Fprintf(w, " to %d", m.Most)
	}
	fmt.Fprintf(w, ", and there are %d\n", m.Seen.Left)
	r.sums(w, m.Counter)
	for i, l := range p.leases {
		fmt.Fprintf(w, "  replica %d leased %d hits of all its counters: %d spent, %d refunded, %d neither\n", i+1, l.leased, l.spent, l.returned+l.full, l.unspent)
	}
}

// sums prints the calls on a counter by setting and outcome.
func (r *round) sums(w io.Writer, counter proof.Counter) {
	calls, hits := map[string]int{}, map[string]int64{}
	for i := range r.calls {
		c := r.calls[i]
		if c.In(counter) {
			c.Owner = ""
			text := callText(&c)
			calls[text]++
			hits[text] += c.Hits
		}
	}
	for _, text := range slices.Sorted(maps.Keys(calls)) {
		fmt.Fprintf(w, "    %s, %d hits in %d calls\n", text, hits[text], calls[text])
	}
}
