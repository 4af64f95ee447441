package cli

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// readProblems says what could not be read.
func (p *program) readProblems(s *recorded.Summary) {
	if s.Unread > 0 {
		fmt.Fprint(p.stderr, sprintf("warning: %d of %s could not be read:\n", s.Unread, descriptors.CountText(int(s.Lines), "line")))
		for _, line := range s.First {
			fmt.Fprint(p.stderr, sprintf("  %s\n", line))
		}
		if more := s.Unread - uint64(len(s.First)); more > 0 {
			fmt.Fprint(p.stderr, sprintf("  and %d more\n", more))
		}
	}
	for _, name := range s.Short {
		fmt.Fprint(p.stderr, sprintf("warning: %s ends in the middle of its gzip data: it is truncated, or still being written\n", name))
	}
	if s.Lost > 0 {
		fmt.Fprint(p.stderr, sprintf("warning: %d decisions are missing, because watch lost or skipped them\n", s.Lost))
	}
	if s.Cut > 0 {
		fmt.Fprint(p.stderr, sprintf("warning: %d descriptors were truncated by watch, so different ones may be counted as one\n", s.Cut))
	}
}

// replayText prints a report as text: what is rejected, the rules, and the descriptors, top of each.
func (p *program) replayText(r *replay.Report, top int) {
	took := r.To.Sub(r.From)
	p.printf("%s from %s to %s (%s)\n", descriptors.CountText(int(r.Requests), "request"), dayText(r.From), dayText(r.To), descriptors.SpanText(took.Truncate(time.Second)))
	for _, note := range notes(r) {
		p.printf("note: %s\n", note)
	}
	p.printf("\n")
	rows := [][]string{{"RULES", "REQUESTS", "REJECTED", "%", "DESCRIPTORS", "SHADOWED", "NO LIMIT", "FAILED", "MOST REJECTED"}}
	for i := range r.Sets {
		s := &r.Sets[i]
		rows = append(rows, []string{
			s.Rules, number(r.Requests), number(s.Rejected), percent(s.Rejected, r.Requests), affected(r, i), number(s.Shadowed), number(s.NoLimit), number(s.Failed), peak(r, i),
		})
	}
	p.table(rows)
	p.replayChanges(r)
	p.replayRules(r, top)
	p.replayValues(r, top)
}

// replayChanges prints how what is rejected differs from what the other set rejects, and from what was rejected.
func (p *program) replayChanges(r *replay.Report) {
	if c := r.Changed; c != nil {
		p.printf("\nrejected by both: %d; only by %s: %d; only by %s: %d\n", c.Both, r.Sets[0].Rules, c.First, r.Sets[1].Rules, c.Second)
	}
	if r.Then == nil {
		return
	}
	p.printf("\nwhen recorded, %d of %d were rejected by a limit\n", r.Then.Rejected, r.Then.Requests)
	for i := range r.Sets {
		s := &r.Sets[i]
		p.printf("%s rejects %d that passed, and admits %d that were rejected\n", s.Rules, s.RejectedAnew, s.PassedAnew)
	}
}

func (p *program) replayRules(r *replay.Report, top int) {
	heading := append([]string{"RULE", "ASKED"}, rejectedHeading(r)...)
	if len(r.Sets) > 1 {
		heading = append(heading, "DIFFERENCE")
	} else {
		heading = append(heading, "%", "SHADOWED")
	}
	rows := [][]string{append(heading, "FIRST", "LAST", "PLACE")}
	for _, rule := range r.Rules[:min(top, len(r.Rules))] {
		rows = append(rows, ruleRow(&rule))
		for _, l := range rule.Limits {
			row := make([]string, len(rows[0]))
			row[0] = "  " + l.Limit
			for i, n := range l.Rejected {
				row[2+i] = number(n)
			}
			rows = append(rows, row)
		}
	}
	if len(rows) > 1 {
		p.printf("\n")
		p.table(rows)
	}
	if more := len(r.Rules) - top; more > 0 {
		p.printf("and %s; see --top\n", descriptors.CountText(more, "more rule"))
	}
}

// rejectedHeading returns the headings of what each set rejects.
func rejectedHeading(r *replay.Report) []string {
	if len(r.Sets) == 1 {
		return []string{"REJECTED"}
	}
	var all []string
	for i := range r.Sets {
		all = append(all, "BY "+r.Sets[i].Rules)
	}
	return all
}

func ruleRow(rule *replay.Rule) []string {
	asked := slices.Max(rule.Asked)
	row := []string{rule.Path, number(asked)}
	for _, n := range rule.Rejected {
		row = append(row, number(n))
	}
	if len(rule.Rejected) > 1 {
		row = append(row, fmt.Sprintf("%+d", int64(rule.Rejected[1])-int64(rule.Rejected[0])))
	} else {
		row = append(row, percent(rule.Rejected[0], asked), number(rule.Shadowed[0]))
	}
	first, last, place := "", "", ""
	var from, to time.Time
	for i := range rule.Rejected {
		if t := rule.First[i]; t != nil && (from.IsZero() || t.Before(from)) {
			from, first = *t, dayText(*t)
		}
		if t := rule.Last[i]; t != nil && t.After(to) {
			to, last = *t, dayText(*t)
		}
		if rule.Places[i] != "" {
			place = rule.Places[i]
		}
	}
	return append(row, first, last, place)
}

func (p *program) replayValues(r *replay.Report, top int) {
	if len(r.Values) == 0 || top == 0 {
		return
	}
	heading := append([]string{"DESCRIPTOR", "ASKED"}, rejectedHeading(r)...)
	rows := [][]string{append(heading, "RULE")}
	for _, v := range r.Values[:min(top, len(r.Values))] {
		row := []string{v.Text, number(v.Asked)}
		for _, n := range v.Rejected {
			row = append(row, number(n))
		}
		rows = append(rows, append(row, v.Rule))
	}
	p.printf("\n")
	p.table(rows)
	if more := len(r.Values) - top; more > 0 {
		p.printf("and %s; see --top\n", descriptors.CountText(more+int(r.LeftOff), "more descriptor"))
	}
}

// affected says of how many descriptors something is rejected under set i.
func affected(r *replay.Report, i int) string {
	if r.Forgotten && r.Sets[i].Rejected > 0 {
		return "≥" + number(r.Sets[i].Affected)
	}
	return number(r.Sets[i].Affected)
}

// notes say what limits what a report says.
func notes(r *replay.Report) (all []string) {
	add := func(n uint64, format string, args ...any) {
		if n > 0 {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(r.Unasked, "without a descriptor, so no request would be sent for them: %s", descriptors.CountText(int(r.Unasked), "request"))
	add(r.Late, "too late to be sorted, and counted at the time of the lines before them: %s; see --held", descriptors.CountText(int(r.Late), "line"))
	for i := range r.Sets {
		s := &r.Sets[i]
		name := s.Rules
		add(s.Unruled, "%s: %s for a domain without rules: %s", name, descriptors.CountText(int(s.Unruled), "request"), s.UnknownDomain)
		add(s.Close, "%s: %s within a second of a boundary, such as the end of a window, where the exact time decides", name, descriptors.CountText(int(s.Close), "request"))
		add(s.Failed, "%s: a server would answer %d requests with an error: %s", name, s.Failed, s.Error)
		add(s.Endless, "%s: no release is recorded for %d concurrency slots, so they are held for as long as their rules allow", name, s.Endless)
		add(s.Hasty, "%s: %d end-of-request calls were made too early, because more than a million were waiting", name, s.Hasty)
		add(s.ForcedOut, "%s: %d counters were evicted and started from zero: raise $MEMORY_MAX_KEYS", name, s.ForcedOut)
	}
	if r.Forgotten {
		all = append(all, "too many descriptors to remember, so some rare ones may be missing")
	}
	return all
}

// peak says when most requests were rejected under set i.
func peak(r *replay.Report, i int) string {
	t := &r.Timeline
	if len(t.Rejected[i]) == 0 {
		return ""
	}
	most := slices.Max(t.Rejected[i])
	if most == 0 {
		return ""
	}
	at := slices.Index(t.Rejected[i], most)
	return fmt.Sprintf("%d in %s from %s", most, descriptors.SpanText(time.Duration(t.Seconds)*time.Second), dayText(t.Start.Add(time.Duration(int64(at)*t.Seconds)*time.Second)))
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

// percent returns a share of all in percent.
func percent(n, all uint64) string {
	if all == 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(n)/float64(all), 'f', 2, 64)
}

// dayText returns a time in UTC, to the second.
func dayText(t time.Time) string { return t.UTC().Format(time.RFC3339) }
