package limiter

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Errors of operators' calls.
var (
	// ErrNoHits is returned by a grant of 0 hits.
	ErrNoHits = errors.New("a grant of 0 hits refunds nothing: it must be 1 or more")
	// ErrNoGrant is wrapped if no hits can be refunded to a counter.
	ErrNoGrant = errors.New("nothing can be refunded")
	// ErrMayBeGranted is wrapped if the reply to a grant was lost.
	ErrMayBeGranted = errors.New("the hits may have been refunded: peek at the counter, and grant them again, with a new x-request-id, only if they were not")
	// ErrNumber is wrapped if a rule's limit cannot have a number.
	ErrNumber = errors.New("the limit cannot have this number")
)

// find returns the rules, the domain of a descriptor, and its match. The first is nil without rules, the second if the domain has none.
func (l *Limiter) find(domain []byte, entries []descriptors.Entry) (s *snapshot, d *descriptors.Domain, m descriptors.Match) {
	if s = l.rules.Load(); s != nil {
		if d = s.set.Domain(domain); d != nil {
			m, _ = s.match(d, d.Complete(entries))
		}
	}
	return s, d, m
}

// complete completes the descriptors of r, as people write them ([descriptors.Domain.Complete]). A descriptor without hits represents a
// new request, whose reservation has an unused name.
func (s *snapshot) complete(r *Request) {
	d := s.set.Domain(r.Domain)
	for i := range r.Descriptors {
		desc := &r.Descriptors[i]
		written := len(desc.Entries)
		desc.Entries = d.Complete(desc.Entries)
		if len(desc.Entries) > written && r.hitless(desc) {
			desc.Entries[d.Match(desc.Entries).ReserveBy()].Value = []byte(rand.Text())
		}
	}
}

// Matched returns the rule that entries match, or nil. If that rule has plans, it returns the rule of the tenant's plan.
func (l *Limiter) Matched(domain []byte, entries []descriptors.Entry) *descriptors.Rule {
	_, _, m := l.find(domain, entries)
	return m.Rule
}

// Limitable returns the rule of a descriptor if the number to can be put in force for its limit called name, or for its first limit if
// name is empty. Otherwise the error gives the reason.
func (l *Limiter) Limitable(domain string, entries []descriptors.Entry, to descriptors.Override, name string) (*descriptors.Rule, error) {
	s, d, m := l.find([]byte(domain), entries)
	if s == nil {
		return nil, ErrNoRules
	}
	if d == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, s.set.Unknown(domain))
	}
	if m.Rule == nil || m.Rule.Unlimited {
		text := outcome(d, m, entries)
		if m.Below() {
			text += "; --below would apply to the descriptors below it"
		}
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, text)
	}
	i := m.Named(name)
	if i < 0 {
		return nil, fmt.Errorf("%w: the rule %s has no limit called %q%s", ErrNoLimit, m.Rule.Path, name, namesOf(m.Rule))
	}
	if _, err := m.WithOverride(i, to); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNumber, err)
	}
	return m.Rule, nil
}

// namesOf describes the names of a rule's limits.
func namesOf(r *descriptors.Rule) string {
	var names []string
	for _, item := range r.RateLimits.All() {
		if item.Name != "" {
			names = append(names, item.Name)
		}
	}
	if names == nil {
		return ": none of its limits has a name"
	}
	return fmt.Sprintf(": its limits are called %q", names)
}

// HasDomain reports whether a domain has rules.
func (l *Limiter) HasDomain(name string) bool {
	s := l.rules.Load()
	return s != nil && s.set.Domain([]byte(name)) != nil
}

// HasLimit reports whether any rule of a domain has a limit called name.
func (l *Limiter) HasLimit(domain, name string) bool {
	s := l.rules.Load()
	if s == nil {
		return false
	}
	for r := range s.set.Rules() {
		if r.DomainName() != domain {
			continue
		}
		for _, item := range r.RateLimits.All() {
			if item.Name == name && !r.Unlimited {
				return true
			}
		}
	}
	return false
}

// Outcome describes how the rules decide a descriptor. It also reports whether they limit it, and whether there are rules for descriptors
// below it.
func (l *Limiter) Outcome(domain string, entries []descriptors.Entry) (text string, limited, below bool) {
	s, d, m := l.find([]byte(domain), entries)
	switch {
	case s == nil:
		return ErrNoRules.Error(), false, false
	case d == nil:
		return s.set.Unknown(domain), false, false
	}
	return outcome(d, m, entries), m.Rule != nil && !m.Rule.Unlimited, m.Below()
}

// outcome describes how the rules decide a descriptor whose entries match m in d.
func outcome(d *descriptors.Domain, m descriptors.Match, entries []descriptors.Entry) string {
	if m.Rule != nil {
		return m.Outcome(entries)
	}
	steps := d.Explain(entries)
	return steps[len(steps)-1].Text
}

// Grant refunds hits to a descriptor's counter, at most those that are consumed, and returns the counter's state before and after. If dry
// is set, it changes nothing. It returns [ErrNoLimit] if no limit applies, and [ErrNoGrant] if the limit's algorithm or a running penalty
// rules out refunds.
func (l *Limiter) Grant(ctx context.Context, domain string, entries []descriptors.Entry, hits uint64, dry bool) (before, after *Counter, err error) {
	if hits == 0 {
		return nil, nil, ErrNoHits
	}
	p, err := l.locate(domain, entries)
	if err != nil {
		return nil, nil, err
	}
	for i, limit := range p.ops[0].Limits {
		switch a := limit.Algorithm; {
		case a.Queues():
			return nil, nil, fmt.Errorf("%w: the limit %v is a %s, whose turns cannot be taken back", ErrNoGrant, p.parts[0].Limits.At(i), a)
		case a.Holds():
			return nil, nil, fmt.Errorf("%w: the limit %v counts slots, which only their holders release; reset frees all of them",
				ErrNoGrant, p.parts[0].Limits.At(i))
		}
	}
	if before, err = l.peek(ctx, p); err != nil {
		return nil, nil, err
	}
	if left := before.Decision.Penalty; left > 0 {
		return nil, nil, fmt.Errorf("%w: a penalty runs for another %s: a refund does not end it, but reset with force does",
			ErrNoGrant, descriptors.WaitText(left))
	}
	if dry {
		return before, before, nil
	}
	p.ops[0].Mode, p.ops[0].Take.Cost = backend.Refund, min(hits, engine.MaxHits)
	if _, err = l.state(ctx, p); errors.Is(err, backend.ErrUnsent) {
		return nil, nil, err
	}
	if err == nil {
		after, err = l.peek(ctx, p)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrMayBeGranted, err)
	}
	return before, after, nil
}

// Counter is the state of the counter of one descriptor.
type Counter struct {
	Rule       *descriptors.Rule
	RateLimits descriptors.RateLimits // the limits in force
	Name       string                 // the counter's name in a store, without its prefix
	Decision   engine.Decision        // Left, ResetAfter and Penalty are the state, of the limit Strictest
	Overdraft  uint64                 // hits consumed beyond the limit, such as by late charges; 0 if unknown
	Rejects    bool                   // a request for one hit would be rejected now
}

// Peek returns the state of a descriptor's counter and changes nothing. If slots have holders, the descriptor's holder sees its own slots
// as free. Peek returns [ErrNoLimit] if no limit applies.
func (l *Limiter) Peek(ctx context.Context, domain string, entries []descriptors.Entry) (*Counter, error) {
	p, err := l.locate(domain, entries)
	if err != nil {
		return nil, err
	}
	return l.peek(ctx, p)
}

// peek returns the state of p's counter.
func (l *Limiter) peek(ctx context.Context, p *Scratch) (*Counter, error) {
	op := &p.ops[0]
	op.Mode, op.Take = backend.Peek, engine.Take{Cost: 1, Count: 1, Owner: op.Take.Owner}
	c, err := l.state(ctx, p)
	if err != nil || c.Decision.Left > 0 || len(op.Limits) > 1 || op.Penalty != nil {
		return c, err
	}
	consumed, err := l.consumed(ctx, *op)
	c.Overdraft = consumed - min(consumed, op.Limits[0].Capacity())
	return c, err
}

// consumed peeks at the counter of op, of a single limit, and returns all hits that it has consumed. A decision under that limit itself
// tells at most its capacity.
func (l *Limiter) consumed(ctx context.Context, op backend.Op) (uint64, error) {
	raised := op.Limits[0].Raised()
	op.Limits, op.Lease = engine.Limits{raised}, backend.LeaseOff
	ops := []backend.Op{op}
	err := l.inquire(ctx, ops)
	return raised.Capacity() - ops[0].Decision.Left, err
}

// Reset resets a descriptor's counter and returns its state afterwards. Unless force is set, it changes nothing during a penalty; the
// Penalty of the decision is the remaining time. Reset returns [ErrNoLimit] if no limit applies.
func (l *Limiter) Reset(ctx context.Context, domain string, entries []descriptors.Entry, force bool) (*Counter, error) {
	p, err := l.locate(domain, entries)
	if err != nil {
		return nil, err
	}
	op := &p.ops[0]
	if op.Mode = backend.Reset; force {
		op.Mode = backend.ForceReset
	}
	op.Take.Owner = "" // reset all holders
	return l.state(ctx, p)
}

// locate builds the operation on a descriptor's counter. It ignores blocks and allows, which change no counter; limits of controls apply.
func (l *Limiter) locate(domain string, entries []descriptors.Entry) (*Scratch, error) {
	r := &Request{Domain: []byte(domain), Descriptors: []Descriptor{{Entries: entries, HasHits: true}}}
	s, err := l.accept(r)
	if err != nil {
		return nil, err
	}
	s.complete(r)
	p := new(Scratch)
	p.table, p.counter = l.config.Overrides.Load(), true
	p.resolve(s, r)
	p.plan(r, false)
	switch {
	case p.domain == nil:
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, s.set.Unknown(domain))
	case len(p.ops) == 0:
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, outcome(p.domain, p.parts[0].match, entries))
	}
	p.ops[0].Take.Cost = 1
	return p, nil
}

// state carries out the operation of p and returns the state of the counter.
func (l *Limiter) state(ctx context.Context, p *Scratch) (*Counter, error) {
	t, op := &p.parts[0], &p.ops[0]
	if err := l.inquire(ctx, p.ops); err != nil {
		return nil, err
	}
	return &Counter{
		Rule:       t.Rule,
		RateLimits: t.Limits,
		Name:       counterName(op),
		Decision:   op.Decision,
		Rejects:    op.Decision.Admitted == 0,
	}, nil
}

// counterName returns the name of a decided operation's counter in a store. It is derived from the key or, with the reference's names,
// from the name and the start of the window.
func counterName(op *backend.Op) string {
	if op.Name != nil {
		return fmt.Sprintf("%s%d", op.Name, op.Decision.Window/1e6)
	}
	return "rl:{" + base64.RawURLEncoding.EncodeToString(op.Key[:]) + "}"
}
