package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Explanation describes how a request would be decided now.
type Explanation struct {
	Over        bool // the answer to the request is OVER_LIMIT
	DomainKnown bool // the domain has rules; otherwise the request passes
	Together    bool // the descriptors are charged together
	Descriptors []Explained
}

// Explained describes how one descriptor would be decided now.
type Explained struct {
	Status                       // as for a check without hits; Remaining excludes the hits of the request
	Effective Effective          // the limits in force that Decide would use
	Steps     []descriptors.Step // how the entries were matched
	Holder    string             // the holder of slots of a concurrency limit, if the rule names the holder's entry
	Counter   string             // the counter's name in a backend, without its prefix; empty if nothing is counted or the backend failed
	Err       error              // the backend's error; Effective.OnFailure decided instead, unless it is FailError
}

// Explain describes how r would be decided now. It changes nothing and returns the errors of Decide.
func (l *Limiter) Explain(ctx context.Context, r *Request) (*Explanation, error) {
	s, err := l.accept(r)
	if err != nil {
		return nil, err
	}
	s.complete(r)
	p := new(Scratch)
	p.table = l.config.Overrides.Load()
	p.resolve(s, r)
	p.plan(r, true)
	for i := range p.parts {
		p.parts[i].spent = uncharged
	}
	for i := range p.ops {
		p.ops[i].Mode = backend.Peek
	}
	if len(p.ops) > 0 {
		if err := l.inquire(ctx, p.ops); err != nil && ctx.Err() != nil {
			return nil, err
		}
	}
	failed := l.decideWithout(ctx, p)
	l.fold(p)
	d := p.domain
	e := &Explanation{Over: p.verdict.Over && !failed, DomainKnown: d != nil, Together: d != nil && (d.ChargeTogether || l.config.StopWhenOver)}
	for i := range p.parts {
		e.Descriptors = append(e.Descriptors, l.explained(r, p, i))
	}
	return e, nil
}

func (l *Limiter) explained(r *Request, p *Scratch, i int) Explained {
	t, entries := &p.parts[i], r.Descriptors[i].Entries
	x := Explained{Status: p.verdict.Statuses[i], Effective: t.Effective}
	switch {
	case p.domain == nil:
		x.Steps = []descriptors.Step{{Text: p.rules.set.Unknown(string(r.Domain))}}
	case t.Rule != nil && t.Rule.Plan != "":
		x.Steps = p.domain.Explain(p.domain.Complete(entries))
		x.Steps = append(x.Steps[:len(x.Steps)-1], t.explainPlan(l.config.Plans.Load(), entries)...)
	default:
		x.Steps = p.domain.Explain(p.domain.Complete(entries))
	}
	if text := t.explainReserving(); text != "" {
		x.Steps = append(x.Steps, descriptors.Step{Text: text})
	}
	x.Steps = append(x.Steps, p.explainControls(r, &x.Status, i)...)
	if t.op >= 0 {
		op := &p.ops[t.op]
		switch x.Holder, x.Err = op.Take.Owner, op.Err; {
		case x.Err == nil:
			x.Counter = counterName(op)
		case t.OnFailure == descriptors.FailError:
			x.Outcome = Failed
		}
	}
	return x
}

// explainControls describes the effect of the controls on the i-th descriptor.
func (p *Scratch) explainControls(r *Request, s *Status, i int) (steps []descriptors.Step) {
	t := &p.parts[i]
	if len(t.Controls) == 0 {
		return nil
	}
	for _, c := range p.table.Find(r.Domain, r.Descriptors[i].Entries) {
		if len(c.Entries) > len(t.Controls[0].Entries) {
			steps = append(steps, descriptors.Step{Text: fmt.Sprintf("%v is skipped: it has no effect here", c)})
		}
	}
	for _, c := range t.Controls {
		text := fmt.Sprintf("%v decides, until %s", c, c.Until.UTC().Format(time.RFC3339))
		if c.Kind == override.Limit {
			text = fmt.Sprintf("%v changes the limit to %s until %s", c, c.Number(), c.Until.UTC().Format(time.RFC3339))
		}
		if c.Reason != "" {
			text += ": " + c.Reason
		}
		switch {
		case t.Ineffective.Control != nil:
			text += "; it has no effect: " + t.Ineffective.Control.Error()
		case s.Control == nil && t.Control == nil:
			text += "; it has no effect here"
		}
		steps = append(steps, descriptors.Step{Text: text})
	}
	return steps
}

// explainPlan describes the plan of t's tenant, its origin and its limit.
func (t *part) explainPlan(all *plans.Plans, entries []descriptors.Entry) (steps []descriptors.Step) {
	add := func(format string, args ...any) {
		steps = append(steps, descriptors.Step{Text: fmt.Sprintf(format, args...)})
	}
	rule := t.Rule
	name, _ := t.match.Tenant(entries)
	if all == nil {
		add("no table of tenants is configured, so the plan is %s: set TENANTS_FILE or TENANTS_REDIS", descriptors.DefaultPlan)
	}
	found, otherwise := false, ""
	for _, said := range all.Entries(name) {
		switch e := &said.Entry; {
		case found:
			add("%v assigns %v, but is overridden", said.Source, e)
		case e.Over(time.Now()):
			add("%v assigns %v, but the entry has expired", said.Source, e)
			otherwise = "other "
		case rule.Plan != e.Plan:
			found = true
			add("%v assigns %v, but %s does not define this plan, so the plan is %s: use %s", said.Source, e, rule.Path, descriptors.DefaultPlan, rule.PlanNames())
		default:
			found = true
			add("%v assigns %v", said.Source, e)
		}
	}
	if !found && all != nil {
		add("this tenant has no %sentry, so the plan is %s", otherwise, descriptors.DefaultPlan)
	}
	add("%s", t.match.Outcome(entries))
	switch {
	case t.Ineffective.Tenant != nil:
		add("the tenant's own limit has no effect: %v", t.Ineffective.Tenant)
	case t.Source == FromTenant && t.Control == nil:
		add("the tenant's own limit makes it %v", t.Limits.At(0))
	}
	return steps
}

// explainReserving describes t's use of reservations; "" if none.
func (t *part) explainReserving() string {
	switch t.reserving {
	case reserves:
		return fmt.Sprintf("it reserves %d hits%s, unless it is rejected; %s", t.Hits, t.explainEstimate(), descriptors.ReserveBound)
	case settles:
		return fmt.Sprintf("it settles a reservation, if one is open, at a true cost of %d", t.Hits)
	case forged:
		return "the reservation's ID was not made with a key of this server, so nothing changes"
	case charges:
		return "it has no reservation to settle, so its hits are charged immediately"
	case reservesNothing:
	}
	return ""
}
