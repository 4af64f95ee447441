// Package observe shows decisions to operators: a sample of them to package top, and all to those who watch.
//
// This package is optional: the core works without it.
package observe

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/top"
	"github.com/ratelimitd/ratelimitd/internal/operate/watch"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// mostHits is the most hits of one decision that count.
const mostHits = 1_000_000_000

// Observer implements [limiter.Observer].
type Observer struct {
	Top   *top.Top
	Watch *watch.Hub
}

// Wants implements [limiter.Observer].
func (o *Observer) Wants(s *limiter.Sample) bool {
	s.Drawn = !top.Passes(s)
	return s.Drawn || o.Watch.Watched()
}

// Observe implements [limiter.Observer].
func (o *Observer) Observe(ctx context.Context, s *limiter.Sample, decisions []limiter.Decision) {
	if s.Drawn {
		o.sample(s, decisions)
	}
	for i := range decisions {
		if o.Watch.Watched() {
			o.Watch.Publish(ctx, &decisions[i])
		}
	}
}

func (o *Observer) sample(s *limiter.Sample, decisions []limiter.Decision) {
	weight, every := o.Top.Draw(s, len(decisions))
	for i := range decisions {
		d := &decisions[i]
		if weight == 0 || d.Back {
			continue
		}
		entry := top.Decision{Domain: d.Domain, Rule: d.Rule, Entries: d.Entries, Hits: min(d.Hits, mostHits)}
		if d.Over && d.Outcome.Rejects() {
			entry.Rejected, entry.Denied = 1, d.Outcome == limiter.Blocked
		}
		o.Top.Add(&entry, weight, every)
	}
}

// Divided counts, for top, decisions that clients made by themselves on a descriptor that matched a rule.
func (o *Observer) Divided(domain, rule string, entries []descriptors.Entry, allowed, denied uint64) {
	o.Top.Add(&top.Decision{Domain: []byte(domain), Rule: rule, Entries: entries, Hits: allowed + denied, Rejected: denied}, 1, 1)
}
