package admin

import (
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// stateMessage returns the levels, the tally, and the controls of r.
func (s *Service) stateMessage(r *descriptors.Rule, t limiter.Tally, above []*override.Control) *adminv1.RuleState {
	m := &adminv1.RuleState{
		Domain: valid(r.DomainName()), Allowed: t.Allowed, Rejected: t.Rejected, OnFailure: rulemessage.OnFailure(s.limiter.Fallback(r)),
	}
	for _, l := range r.Levels() {
		level := &adminv1.EntryFilter{Key: valid(string(l.Key))}
		if len(l.Value) > 0 {
			level.Value = new(valid(string(l.Value)))
		}
		m.Levels = append(m.Levels, level)
	}
	for _, c := range above[:min(len(above), MaxShown)] {
		m.Controls = append(m.Controls, c.ID)
	}
	return m
}

// above returns, by rule, the controls whose descriptor matches it.
func (s *Service) above(all []*override.Control) map[*descriptors.Rule][]*override.Control {
	by := make(map[*descriptors.Rule][]*override.Control)
	for _, c := range all {
		if len(c.Entries) == 0 {
			continue
		}
		if r := s.limiter.Matched([]byte(c.Domain), c.Match()); r != nil {
			by[r] = append(by[r], c)
		}
	}
	return by
}
