package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// bounds says of each limit of a rule what it never admits more than.
func bounds(r *adminv1.Rule) (all []string) {
	if r.GetIsUnlimited() {
		return []string{"All requests pass and nothing is counted."}
	}
	for _, l := range r.GetLimits() {
		all = append(all, bound(l))
	}
	if len(all) > 1 {
		all = append(all, "A request passes only if all of these limits admit it; otherwise it consumes nothing.")
	}
	if p := r.GetPenalty(); p != nil {
		text := "Once exceeded"
		if p.GetOn() == adminv1.Trigger_TRIGGER_REACHED {
			text = "Once reached"
		}
		text += ", all requests are rejected for " + short(p.GetFor().AsDuration())
		if p.GetEscalate() > 1 {
			text += fmt.Sprintf(", %d times as long each time, up to %s", p.GetEscalate(), short(p.GetMax().AsDuration()))
		}
		all = append(all, text+".")
	}
	if q := r.GetReserve(); q != nil {
		l := q.GetLearned()
		estimate := descriptors.EstimateText(q.GetEstimate(), descriptors.Learn{Percentile: l.GetPercentile(), Min: l.GetMin(), Max: l.GetMax()})
		if l == nil {
			estimate += " hits"
		}
		then := "counts as consumed"
		if q.GetReturns() {
			then = "is refunded"
		}
		all = append(all, fmt.Sprintf("A request reserves %s unless it sets a number, and settles its real cost later. A reservation not settled within %s %s.",
			estimate, short(q.GetTtl().AsDuration()), then))
	}
	if r.GetShadowMode() {
		all = append(all, "Shadow mode: requests over the limit are counted but pass.")
	}
	if r.GetQuotaMode() {
		all = append(all, "Quota mode: a request is rejected only if all its rules in quota mode are over their limits.")
	}
	return all
}

func bound(l *adminv1.Limit) string {
	hits, window := l.Number(), windowText(l)
	if hits == 0 {
		return "All requests are rejected."
	}
	switch l.GetAlgorithm() {
	case adminv1.Algorithm_ALGORITHM_FIXED_WINDOW:
		if l.GetUnit() == adminv1.Unit_UNIT_FOREVER {
			return fmt.Sprintf("Never more than %d, until the counter is reset.", hits)
		}
		return fmt.Sprintf("Never more than %d per window (%s), nor %d in any %s across two windows.", hits, window, 2*hits, window)
	case adminv1.Algorithm_ALGORITHM_SLIDING_WINDOW:
		return fmt.Sprintf("Never more than %d in any %s. Consumed hits return up to 1/%d of that time late.", hits, window, l.GetPrecision())
	case adminv1.Algorithm_ALGORITHM_SLIDING_LOG:
		return fmt.Sprintf("Never more than %d in any %s. Each hit returns exactly that long after it was consumed.", hits, window)
	case adminv1.Algorithm_ALGORITHM_TOKEN_BUCKET:
		return fmt.Sprintf("Never more than %d at once, plus %d for each %s that passes.", l.GetBurst(), hits, window)
	case adminv1.Algorithm_ALGORITHM_LEAKY_BUCKET:
		return fmt.Sprintf("%d requests leave the queue per %s, evenly spaced. At most %d wait; a request that finds the queue full is rejected.", hits, window, l.GetBurst())
	case adminv1.Algorithm_ALGORITHM_CONCURRENCY:
		return fmt.Sprintf("Never more than %d held at once. A slot that is never released is free again after %s.", hits, window)
	case adminv1.Algorithm_ALGORITHM_UNSPECIFIED:
	}
	return l.GetText()
}

// windowText returns the length of a window, such as minute or 5 minutes.
func windowText(l *adminv1.Limit) string {
	return descriptors.RateLimit{Unit: descriptors.Unit(l.GetUnit()), Multiplier: max(l.GetUnitMultiplier(), 1)}.WindowText() // both are numbered alike
}

// ruleYAML returns what a rule says as in a file, without what has its default.
func ruleYAML(r *adminv1.Rule) string {
	var b strings.Builder
	switch {
	case r.GetIsUnlimited():
		return "rate_limit:\n  unlimited: true\n"
	case len(r.GetLimits()) == 1:
		b.WriteString("rate_limit:\n")
		for _, line := range limitYAML(r.GetLimits()[0]) {
			b.WriteString("  " + line + "\n")
		}
	default:
		b.WriteString("rate_limits:\n")
		for _, l := range r.GetLimits() {
			b.WriteString("  - {" + strings.Join(limitYAML(l), ", ") + "}\n")
		}
	}
	if p := r.GetPenalty(); p != nil {
		fmt.Fprintf(&b, "  penalty: {for: %s, on: %s", p.GetFor().AsDuration(), lower(p.GetOn().String(), "TRIGGER_"))
		if p.GetEscalate() > 1 {
			fmt.Fprintf(&b, ", escalate: %d, max: %s", p.GetEscalate(), p.GetMax().AsDuration())
		}
		b.WriteString("}\n")
	}
	if r.GetShadowMode() {
		b.WriteString("shadow_mode: true\n")
	}
	return b.String()
}

// limitYAML returns the keys of a limit, with their values.
func limitYAML(l *adminv1.Limit) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	add("unit: %s", lower(l.GetUnit().String(), "UNIT_"))
	add("requests_per_unit: %d", l.Number())
	if l.GetUnitMultiplier() > 1 {
		add("unit_multiplier: %d", l.GetUnitMultiplier())
	}
	fixed := l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_FIXED_WINDOW
	if !fixed {
		add("algorithm: %s", strings.ToLower(strings.TrimPrefix(l.GetAlgorithm().String(), "ALGORITHM_")))
	}
	if n := l.GetBurst(); n > 0 && n != l.Number() {
		add("burst: %d", n)
	}
	if l.GetDebt() > 0 {
		add("debt: %d", l.GetDebt())
	}
	if l.Initial != nil && l.GetInitial() != l.GetBurst() {
		add("initial: %d", l.GetInitial())
	}
	if d := l.GetFillInterval().AsDuration(); d > 0 {
		add("fill_interval: %s", d)
	}
	if l.GetAlign() == adminv1.Align_ALIGN_FIRST {
		add("align: first")
	}
	if n := l.GetPrecision(); n > 0 && n != 10 {
		add("precision: %d", n)
	}
	if l.GetLateCharge() {
		add("late_charge: true")
	} else if l.GetCountRefused() != fixed {
		add("count_refused: %t", l.GetCountRefused())
	}
	if from := l.GetCalendarBegin(); from != nil {
		add("calendar: %s", beginText(from))
	} else if l.GetCalendar() {
		add("calendar: true")
	}
	if z := l.GetTimezone(); z != "" && z != time.UTC.String() {
		add("timezone: %s", z)
	}
	if l.GetName() != "" {
		add("name: %q", l.GetName())
	}
	return all
}
