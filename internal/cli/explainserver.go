package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// explainThere prints how a running server would decide a request with these descriptors.
func (p *program) explainThere(ctx context.Context, q *query, args []string) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	request := &adminv1.ExplainRequest{Domain: args[0]}
	for i := range wanted {
		request.Descriptors = append(request.Descriptors, wanted[i].message())
	}
	return ask(ctx, q, adminv1.AdminServiceClient.Explain, request, func(answer *adminv1.ExplainResponse) {
		if failed := slices.ContainsFunc(answer.GetDescriptors(), isFailed); len(wanted) > 1 {
			p.printf("request: %s\n", map[bool]string{
				answer.GetOverLimit(): "REJECTED", !answer.GetOverLimit(): "ADMITTED",
				failed: "NO ANSWER",
			}[true])
		}
		for i, x := range answer.GetDescriptors() {
			if i < len(wanted) {
				p.print(verdictText(x) + "\n" + sprintf("  %s %s\n", args[0], wanted[i].text) + explanationText(x))
			}
		}
	})
}

func isFailed(x *adminv1.Explanation) bool { return x.GetOutcome() == adminv1.Outcome_OUTCOME_FAILED }

// message returns d for the admin API.
func (d *descriptor) message() *adminv1.Descriptor {
	m := &adminv1.Descriptor{Entries: d.messages(), IsNegativeHits: d.give, HitsAddend: d.hits}
	if d.limit != nil {
		m.Limit = &adminv1.Override{RequestsPerUnit: d.limit.RequestsPerUnit, Unit: adminv1.Unit(d.limit.Unit), UnitMultiplier: d.limit.Multiplier}
	}
	return m
}

// explanationText says how a descriptor would be decided, and by what.
func explanationText(x *adminv1.Explanation) string {
	var b page
	line := func(format string, args ...any) { b.printf("  %s\n", sprintf(format, args...)) }
	for _, step := range x.GetSteps() {
		if step.GetEntry() == "" {
			line("%s", step.GetText())
		} else {
			line("%s: %s", step.GetEntry(), step.GetText())
		}
	}
	if why := x.GetOverrideIgnored(); why != "" {
		line("the limit in the request is ignored: %s", why)
	}
	if x.GetCounter() != nil {
		b.WriteString(counterText(x.GetCounter(), x.GetHolder()))
	}
	if d := x.GetDivided(); d != nil {
		line("divided among RLQS clients: %s", dividedText(d))
	}
	if why := x.GetStoreError(); why != "" {
		line("store: %s", why)
	} else if x.GetOnFailure() != 0 {
		line("if the store fails, %s", fallbackText(x.GetOnFailure(), x.GetRule()))
	}
	return b.String()
}

// fallbackText says what decides without the store, and which setting says so. The rule may be nil.
func fallbackText(f adminv1.OnFailure, r *adminv1.Rule) string {
	text := map[adminv1.OnFailure]string{
		adminv1.OnFailure_ON_FAILURE_ERROR: "error: Envoy's failure_mode_deny decides",
		adminv1.OnFailure_ON_FAILURE_ALLOW: "allow: requests pass",
		adminv1.OnFailure_ON_FAILURE_DENY:  "deny: requests are rejected",
		adminv1.OnFailure_ON_FAILURE_LOCAL: "local: each server counts by itself",
	}[f]
	if r.GetOnFailure() != adminv1.OnFailure_ON_FAILURE_UNSPECIFIED {
		return text + " (on_failure of the rule)"
	}
	return text + " (DEFAULT_ON_FAILURE)"
}

// verdictText returns the verdict on a descriptor in one line: the outcome, what decided, the limit and what is left of it.
func verdictText(x *adminv1.Explanation) string {
	parts := []string{strings.ReplaceAll(strings.TrimPrefix(x.GetOutcome().String(), "OUTCOME_"), "_", " ")}
	switch o := x.GetOutcome(); {
	case (o == adminv1.Outcome_OUTCOME_BLOCKED || o == adminv1.Outcome_OUTCOME_ALLOWED) && len(x.GetControls()) > 0:
		c := x.GetControls()[0]
		parts[0] += sprintf(" by %s until %s", c.GetBy(), clockText(c.GetUntil()))
		if c.GetReason() != "" {
			parts = append(parts, sprintf("%s", c.GetReason()))
		}
		return strings.Join(append(parts, "undo: ratelimitd lift "+c.GetId()), " · ")
	case isFailed(x):
		parts[0] = "NO ANSWER"
	case o == adminv1.Outcome_OUTCOME_NO_LIMIT:
		parts[0] = "NOT LIMITED"
	}
	if r := x.GetRule(); r != nil {
		parts[0] += sprintf(" %s %s (%s)", map[bool]string{false: "by", true: "for"}[isFailed(x)], r.GetPath(), rulePlace(r))
	}
	c, limits := x.GetCounter(), x.GetCounter().GetLimits()
	if c == nil {
		limits = x.GetRule().GetLimits()
	}
	if i := int(c.GetStrictest()); i < len(limits) {
		parts = append(parts, limitName(limits[i]))
	}
	if c != nil {
		parts = append(parts, fmt.Sprintf("%d left", c.GetLeft()))
	}
	for text, d := range map[string]*durationpb.Duration{"retry": c.GetRetryAfter(), "turn": c.GetWait()} { // never both
		if d != nil {
			parts = append(parts, text+" in "+descriptors.WaitText(d.AsDuration()))
		}
	}
	switch x.GetOutcome() { //nolint:exhaustive // the others are clear
	case adminv1.Outcome_OUTCOME_SHADOWED:
		parts = append(parts, "over the limit, admitted in shadow mode")
	case adminv1.Outcome_OUTCOME_REPLACED:
		parts = append(parts, "another descriptor replaces its limits")
	case adminv1.Outcome_OUTCOME_SKIPPED:
		parts = append(parts, "another descriptor is blocked, or the reservation's ID is not valid")
	case adminv1.Outcome_OUTCOME_LATE_CHARGE:
		text := "charges for a request that has run, and rejects nothing"
		if c.GetRejects() {
			text = "charged in full; requests that check first, with 0 hits, are REJECTED"
		}
		parts = append(parts, text)
	}
	if x.GetStoreError() != "" {
		parts = append(parts, "the store is down, fallback "+fallbackText(x.GetOnFailure(), x.GetRule()))
	}
	return strings.Join(parts, " · ")
}

// limitName returns a limit as --to takes it, or how many it admits at a time.
func limitName(l *adminv1.Limit) string {
	if l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_CONCURRENCY {
		return fmt.Sprintf("%d at a time", l.GetRequestsPerUnit())
	}
	return rateName(l.GetRequestsPerUnit(), l.GetUnit(), l.GetUnitMultiplier())
}
