package admin

import (
	"bytes"
	"context"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Explain returns the answer that ShouldRateLimit would give now, with the reasons.
func (s methods) Explain(ctx context.Context, q *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	r := &limiter.Request{Domain: []byte(q.GetDomain()), Hits: q.GetHitsAddend()}
	for _, d := range q.GetDescriptors() {
		r.Descriptors = append(r.Descriptors, descriptorOf(d))
	}
	e, err := s.limiter.Explain(ctx, r)
	if err != nil {
		return nil, err
	}
	a := &adminv1.ExplainResponse{OverLimit: e.Over, DomainKnown: e.DomainKnown, ChargeTogether: e.Together}
	for i := range e.Descriptors {
		m := explanationMessage(&e.Descriptors[i], whoOf(ctx))
		if e.Descriptors[i].Rule != nil && e.Descriptors[i].Rule.RLQS != nil {
			m.Divided = s.divided(ctx, q.GetDomain(), r.Descriptors[i].Entries)
		}
		a.Descriptors = append(a.Descriptors, m)
	}
	return a, nil
}

// divided returns how RLQS divides the limit of a descriptor among clients; nil if it does not.
func (s *Service) divided(ctx context.Context, domain string, entries []descriptors.Entry) *adminv1.DividedLimit {
	same := func(one, other descriptors.Entry) bool {
		return bytes.Equal(one.Key, other.Key) && bytes.Equal(one.Value, other.Value)
	}
	found := s.config.Process.Divided(whoOf(ctx), func(at string, of []descriptors.Entry) bool {
		return at == domain && slices.EqualFunc(entries, of, same)
	})
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

// Peek returns the state of the counter of one descriptor.
func (s methods) Peek(ctx context.Context, q *adminv1.PeekRequest) (*adminv1.PeekResponse, error) {
	if len(q.GetEntries()) == 0 {
		return nil, errNoEntries
	}
	c, err := s.limiter.Peek(ctx, q.GetDomain(), entriesOf(q.GetEntries()))
	if err != nil {
		return nil, err
	}
	m := counterMessage(c.Name, &c.RateLimits, &c.Decision)
	m.Rejects, m.Overdraft = c.Rejects, c.Overdraft
	return &adminv1.PeekResponse{Rule: rulemessage.Of(c.Rule), Counter: m}, nil
}

// Reset clears the counter of one descriptor.
func (s methods) Reset(ctx context.Context, q *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	if len(q.GetEntries()) == 0 {
		return nil, errNoEntries
	}
	entries, a := entriesOf(q.GetEntries()), actOf(ctx)
	c, err := s.limiter.Peek(ctx, q.GetDomain(), entries)
	if err == nil { // otherwise Reset fails too, or the previous state is unknown
		a.Before = counterState(c)
	}
	if !q.GetDryRun() {
		c, err = s.limiter.Reset(ctx, q.GetDomain(), entries, q.GetForce())
	}
	if err != nil {
		return nil, err
	}
	if c.Decision.Penalty > 0 && (!q.GetDryRun() || !q.GetForce()) {
		return nil, &codedError{
			codes.FailedPrecondition, "a penalty runs for another " + descriptors.WaitText(c.Decision.Penalty) + ": wait, or set force to end it",
		}
	}
	a.After = counterState(c)
	return &adminv1.ResetResponse{Rule: rulemessage.Of(c.Rule), Counter: counterMessage(c.Name, &c.RateLimits, &c.Decision), Reach: s.counting(ctx)}, nil
}

// counting returns the replicas that share the counters.
func (s *Service) counting(ctx context.Context) *adminv1.Reach {
	switch {
	case s.config.UnsharedCounters != "":
		return &adminv1.Reach{Replicas: 1, Alone: s.config.UnsharedCounters}
	case s.controls.Unshared() != "": // the replicas are unknown
		return new(adminv1.Reach)
	}
	return s.reach(ctx)
}
