package limiter

import (
	"context"
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Why an operator cannot have what was asked for.
var (
	// ErrNoHits is the error of a grant of nothing.
	ErrNoHits = errors.New("a grant of 0 hits gives nothing: it must be 1 or more")
	// ErrNoGrant is wrapped by the error for a counter that hits cannot be given back to.
	ErrNoGrant = errors.New("nothing can be given back")
	// ErrNumber is wrapped by the error for a number that a rule's limit cannot have.
	ErrNumber = errors.New("the limit cannot have this number")
)

// Limitable returns the rule of a descriptor if a number can be put in force for its limit of that name, or for its first one
// if there is no name; or else why not.
func (l *Limiter) Limitable(domain string, entries []descriptors.Entry, to descriptors.Override, name string) (*descriptors.Rule, error) {
	s := l.rules.Load()
	if s == nil {
		return nil, ErrNoRules
	}
	d := s.set.Domain([]byte(domain))
	if d == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, s.set.Unknown(domain))
	}
	m, _ := s.match(d, entries)
	if m.Rule == nil || m.Rule.Unlimited {
		text := outcome(d, m, entries)
		if m.Below() {
			text += "; with --below it is about those below it"
		}
		return nil, fmt.Errorf("%w: %s", ErrNoLimit, text)
	}
	i := m.Named(name)
	if i < 0 {
		return nil, fmt.Errorf("%w: the rule %s has no limit called %q%s", ErrNoLimit, m.Rule.Path, name, namesOf(m.Rule))
	}
	if _, err := m.Relimited(i, to); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNumber, err)
	}
	return m.Rule, nil
}

// namesOf says which names a rule's limits have.
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

// HasDomain reports whether there are rules for a domain.
func (l *Limiter) HasDomain(name string) bool {
	s := l.rules.Load()
	return s != nil && s.set.Domain([]byte(name)) != nil
}

// HasLimit reports whether a rule of a domain has a limit of that name.
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

// Outcome says what the rules make of a descriptor, in words, whether they limit it, and whether there are descriptors below it.
func (l *Limiter) Outcome(domain string, entries []descriptors.Entry) (text string, limited, below bool) {
	s := l.rules.Load()
	if s == nil {
		return ErrNoRules.Error(), false, false
	}
	d := s.set.Domain([]byte(domain))
	if d == nil {
		return s.set.Unknown(domain), false, false
	}
	m, _ := s.match(d, entries)
	return outcome(d, m, entries), m.Rule != nil && !m.Rule.Unlimited, m.Below()
}

// outcome says what m, to which entries lead in d, comes to.
func outcome(d *descriptors.Domain, m descriptors.Match, entries []descriptors.Entry) string {
	if m.Rule != nil {
		return m.Outcome(entries)
	}
	steps := d.Explain(entries)
	return steps[len(steps)-1].Text
}

// Grant gives hits back to the counter of a descriptor, at most those that are spent, and returns its state before and after.
// With dry nothing is changed. It returns [ErrNoLimit] if no limit applies, and [ErrNoGrant] where giving back means nothing.
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
			return nil, nil, fmt.Errorf("%w: the limit %v is a %s, whose turns are promised once they are given", ErrNoGrant, p.parts[0].limits.At(i), a)
		case a.Holds():
			return nil, nil, fmt.Errorf("%w: the limit %v counts slots, which only those who hold them give back; reset frees all of them",
				ErrNoGrant, p.parts[0].limits.At(i))
		}
	}
	look := func() (*Counter, error) {
		p.ops[0].Mode, p.ops[0].Take = backend.Look, engine.Take{Cost: 1, Count: 1}
		return l.state(ctx, p)
	}
	if before, err = look(); err != nil {
		return nil, nil, err
	}
	if left := before.Decision.Penalty; left > 0 {
		return nil, nil, fmt.Errorf("%w: a penalty runs for another %s, which giving back does not end; reset with force does",
			ErrNoGrant, descriptors.WaitText(left))
	}
	if dry {
		return before, before, nil
	}
	p.ops[0].Mode, p.ops[0].Take.Cost = backend.Give, min(hits, engine.MaxHits)
	if _, err = l.state(ctx, p); err != nil {
		return nil, nil, err
	}
	after, err = look()
	return before, after, err
}
