package console

import (
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// bounds describes the most that each limit of a rule can admit.
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

// windowText describes the length of a window, such as minute or 5 minutes.
func windowText(l *adminv1.Limit) string {
	return descriptors.RateLimit{Unit: descriptors.Unit(l.GetUnit()), Multiplier: max(l.GetUnitMultiplier(), 1)}.WindowText() // the numbers are the same
}

// ruleYAML formats a rule as in a file, without default values.
func ruleYAML(r *adminv1.Rule) string {
	if r.GetIsUnlimited() {
		return "rate_limit:\n  unlimited: true\n"
	}
	limits, err := rulemessage.Limits(r.GetLimits())
	if err != nil {
		return "# " + err.Error() + "\n"
	}
	var b strings.Builder
	if limits.Len() > 1 {
		b.WriteString("rate_limits:\n")
	}
	for _, l := range limits.All() {
		if limits.Len() == 1 {
			b.WriteString("rate_limit:\n  " + strings.Join(limitYAML(l), "\n  ") + "\n")
		} else {
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
func limitYAML(l *descriptors.RateLimit) []string {
	all := []string{"unit: " + strings.ToLower(l.Unit.String()), fmt.Sprintf("requests_per_unit: %d", l.Number())}
	if l.Multiplier > 1 {
		all = append(all, fmt.Sprintf("unit_multiplier: %d", l.Multiplier))
	}
	if a := l.Limit.Algorithm; a != engine.FixedWindow {
		all = append(all, "algorithm: "+a.String())
	}
	for p := range engine.Parameters() {
		if p.TakenBy(l.Limit.Algorithm) && p.Get(&l.Limit) != p.Usual(&l.Limit) {
			all = append(all, p.String()+": "+p.Text(&l.Limit))
		}
	}
	if l.Name != "" {
		all = append(all, fmt.Sprintf("name: %q", l.Name))
	}
	return all
}
