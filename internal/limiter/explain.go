package limiter

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Explanation describes how a request would be decided now.
type Explanation struct {
	Over        bool // OVER_LIMIT for the whole request
	Known       bool // the domain has rules; if not, everything passes
	Together    bool // the descriptors are charged together
	Descriptors []Explained
}

// Explained describes how one descriptor would be decided now.
type Explained struct {
	Status                            // as Decide would fill it in if it only looked; Remaining is what is left before the hits
	Steps      []descriptors.Step     // how the entries were matched
	Hits       uint64                 // what it would spend, or give back
	Negative   bool                   // it gives back
	RateLimits descriptors.RateLimits // the limits in force, if any
	Holder     string                 // the holder of the slots of a concurrency limit, if the rule says which entry names it
	Counter    string                 // the name of the counter in a store, without its prefix; empty if nothing is counted
	Controls   []*controls.Control    // those that decide on it
	Ignored    error                  // why the request's override is ignored, or nil
}

// Counter is the state of the counter of one descriptor.
type Counter struct {
	Rule       *descriptors.Rule
	RateLimits descriptors.RateLimits // the limits in force
	Name       string                 // of the counter in a store, without its prefix
	Decision   engine.Decision        // Left, ResetAfter and Penalty are the state; Strictest is the limit they refer to
	Refuses    bool                   // a request for one hit would be refused now
}

// Explain describes how r would be decided now, and changes nothing. Its errors are those of Decide.
func (l *Limiter) Explain(ctx context.Context, r *Request) (*Explanation, error) {
	s, err := l.accept(r)
	if err != nil {
		return nil, err
	}
	p, table, d := new(Scratch), l.table(), s.set.Domain(r.Domain)
	if d != nil && d.ReserveEntries != nil {
		p.findReservations(d, r)
	}
	p.steer(table, s, r)
	p.steered.look = true
	if d == nil {
		l.strangers(p, r)
		e := &Explanation{Over: p.verdict.Over, Descriptors: make([]Explained, len(r.Descriptors))}
		for i := range e.Descriptors {
			e.Descriptors[i] = Explained{Status: p.verdict.Statuses[i], Steps: []descriptors.Step{{Text: s.set.Unknown(string(r.Domain))}}}
			p.explainControls(&e.Descriptors[i], table, r, i)
		}
		return e, nil
	}
	p.plan(s, d, r)
	for i := range p.parts {
		p.parts[i].unspent = true
	}
	for i := range p.ops {
		p.ops[i].Mode, p.ops[i].Aside = backend.Look, true
	}
	if len(p.ops) > 0 {
		if err := l.apply(ctx, p.ops, false); err != nil {
			return nil, err
		}
	}
	l.fold(p)
	e := &Explanation{Over: p.verdict.Over, Known: true, Together: d.ChargeTogether || l.config.StopWhenOver}
	for i := range p.parts {
		e.Descriptors = append(e.Descriptors, l.explained(d, table, r, p, i))
	}
	return e, nil
}

func (l *Limiter) explained(d *descriptors.Domain, table *controls.Table, r *Request, p *Scratch, i int) Explained {
	t := &p.parts[i]
	x := Explained{
		Status:     p.verdict.Statuses[i],
		Steps:      d.Explain(r.Descriptors[i].Entries),
		Hits:       t.hits,
		Negative:   t.negative,
		RateLimits: t.limits,
	}
	switch t.ignored {
	case notIgnored:
	case ignoredNotAllowed:
		x.Ignored = errNotAllowed
	case ignoredInvalid:
		x.Ignored = t.reason
	}
	if t.match.Rule != nil && t.match.Rule.Plan != "" {
		x.Steps = append(x.Steps[:len(x.Steps)-1], t.explainPlan(l.config.Tenants, r.Descriptors[i].Entries)...)
	}
	if text := t.explainReserving(); text != "" {
		x.Steps = append(x.Steps, descriptors.Step{Text: text})
	}
	p.explainControls(&x, table, r, i)
	if t.op >= 0 {
		x.Counter, x.Holder = counterName(&p.ops[t.op]), p.ops[t.op].Take.Owner
	}
	return x
}

// Peek returns the state of the counter of a descriptor, and changes nothing. Where slots have holders it is the state as
// the descriptor's holder finds it, to whom its own slots are free. It returns [ErrNoLimit] if no limit applies.
func (l *Limiter) Peek(ctx context.Context, domain string, entries []descriptors.Entry) (*Counter, error) {
	return l.counter(ctx, domain, entries, func(op *backend.Op) { op.Mode = backend.Look })
}

// Reset resets the counter of a descriptor, and returns its state afterwards. Without force nothing changes while a
// penalty runs; the Penalty of the decision is what is left of it. It returns [ErrNoLimit] if no limit applies.
func (l *Limiter) Reset(ctx context.Context, domain string, entries []descriptors.Entry, force bool) (*Counter, error) {
	return l.counter(ctx, domain, entries, func(op *backend.Op) {
		op.Mode, op.Force = backend.Reset, force
		op.Take.Owner = "" // it is the counter as a whole that is reset
	})
}

// locate makes the operation on the counter of a descriptor. Of controls only limits count: others change no counter.
func (l *Limiter) locate(domain string, entries []descriptors.Entry) (*Scratch, error) {
	r := &Request{Domain: []byte(domain), Descriptors: []Descriptor{{Entries: entries, HasHits: true}}}
	s, err := l.accept(r)
	if err != nil {
		return nil, err
	}
	d := s.set.Domain(r.Domain)
	if d == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, s.set.Unknown(domain))
	}
	p := new(Scratch)
	p.steer(l.table(), s, r)
	p.steered.only, p.steered.blocked = true, false
	p.plan(s, d, r)
	t := &p.parts[0]
	if t.op < 0 {
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, outcome(d, t.match, entries))
	}
	p.ops[0].Take.Cost, p.ops[0].Aside = 1, true
	return p, nil
}

// counter applies an operation, which ask completes, to the counter of a descriptor.
func (l *Limiter) counter(ctx context.Context, domain string, entries []descriptors.Entry, ask func(*backend.Op)) (*Counter, error) {
	p, err := l.locate(domain, entries)
	if err != nil {
		return nil, err
	}
	ask(&p.ops[0])
	return l.state(ctx, p)
}

// state carries out the operation of p, and returns the state of the counter.
func (l *Limiter) state(ctx context.Context, p *Scratch) (*Counter, error) {
	t, op := &p.parts[0], &p.ops[0]
	if err := l.apply(ctx, p.ops, false); err != nil {
		return nil, err
	}
	return &Counter{
		Rule:       t.match.Rule,
		RateLimits: t.limits,
		Name:       counterName(op),
		Decision:   op.Decision,
		Refuses:    op.Decision.Admitted == 0,
	}, nil
}

// counterName returns the name of a decided operation's counter in a store: made of its key or, with the reference's
// names, of its name and the start of the window.
func counterName(op *backend.Op) string {
	if op.Name != nil {
		return fmt.Sprintf("%s%d", op.Name, op.Decision.Window/1e6)
	}
	return "rl:{" + base64.RawURLEncoding.EncodeToString(op.Key[:]) + "}"
}
