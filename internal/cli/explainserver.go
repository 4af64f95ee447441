package cli

import (
	"context"

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
		for i, x := range answer.GetDescriptors() {
			if i < len(wanted) {
				p.print(sprintf("%s %s\n", args[0], wanted[i].text) + explanationText(x))
			}
		}
		switch {
		case len(wanted) == 1:
		case answer.GetOverLimit():
			p.printf("together: OVER_LIMIT\n")
		default:
			p.printf("together: OK\n")
		}
	})
}

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
	for _, control := range x.GetControls() {
		text := "decided by " + controlText(control) + ", by " + control.GetBy()
		if why := control.GetReason(); why != "" {
			text += ": " + why
		}
		line("%s", text)
	}
	if x.GetOutcome() != adminv1.Outcome_OUTCOME_UNSPECIFIED { // as of rules that no server was asked about
		line("%s", outcomeText(x))
	}
	if x.GetCounter() != nil {
		b.WriteString(counterText(x.GetCounter(), x.GetHolder()))
	}
	if d := x.GetDivided(); d != nil {
		line("divided among clients that decide by themselves: %s", dividedText(d))
	}
	return b.String()
}

// outcomeText says what would be answered to a descriptor now.
func outcomeText(x *adminv1.Explanation) string {
	switch x.GetOutcome() {
	case adminv1.Outcome_OUTCOME_NO_LIMIT:
		return "would be answered OK: not limited"
	case adminv1.Outcome_OUTCOME_UNLIMITED:
		return "would be answered OK: unlimited"
	case adminv1.Outcome_OUTCOME_REPLACED:
		return "would be answered OK: another descriptor of the request replaces its limits"
	case adminv1.Outcome_OUTCOME_ADMITTED:
		return "would be answered OK"
	case adminv1.Outcome_OUTCOME_REJECTED:
		return "would be answered OVER_LIMIT"
	case adminv1.Outcome_OUTCOME_SHADOWED:
		return "would be answered OK: over the limit, in shadow mode"
	case adminv1.Outcome_OUTCOME_BLOCKED:
		return "would be answered OVER_LIMIT: blocked"
	case adminv1.Outcome_OUTCOME_ALLOWED:
		return "would be answered OK: allowed, and not counted"
	case adminv1.Outcome_OUTCOME_UNSPECIFIED, adminv1.Outcome_OUTCOME_FAILED, adminv1.Outcome_OUTCOME_LATE_CHARGE:
	}
	return "would be answered as " + x.GetOutcome().String() + ", which this ratelimitd does not know"
}
