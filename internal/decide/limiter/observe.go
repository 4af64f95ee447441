package limiter

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/top"
	"github.com/ratelimitd/ratelimitd/internal/operate/watch"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// draws reports whether Config.Top draws r as a sample, which is rare on a busy server.
func (l *Limiter) draws(r *Request, p *Scratch) bool {
	return l.config.Top != nil && !p.sampler.Passes(r.most())
}

// most returns the hits of the descriptor of r that spends the most. A check without hits counts as one, so that rejected checks
// are drawn too.
func (r *Request) most() (hits uint64) {
	for i := range r.Descriptors {
		if d := &r.Descriptors[i]; !d.refunds() {
			hits = max(hits, r.hits(d), 1)
		}
	}
	return hits
}

// observe shows the decision on r to Config.Watch and, if r is drawn, to Config.Top. p has its parts if deciding came so far; err
// says why there is no verdict.
func (l *Limiter) observe(ctx context.Context, r *Request, p *Scratch, drawn bool, err error) {
	var (
		weight  float64
		every   uint32
		now     = time.Now()
		watched = l.config.Watch.Watched()
	)
	if drawn {
		weight, every = l.config.Top.Draw(&p.sampler, r.most(), len(r.Descriptors))
	}
	if weight == 0 && !watched {
		return
	}
	d := &p.shown
	defer func() { *d = watch.Decision{} }() // what it points to belongs to the request
	if len(r.Descriptors) == 0 && watched {
		*d = watch.Decision{Domain: r.Domain, Facts: watch.Facts{Outcome: watch.Failed, Err: err}}
		l.config.Watch.Publish(ctx, d, now)
	}
	for i := range r.Descriptors[:min(len(r.Descriptors), MaxDescriptors)] {
		*d = l.observed(r, p, i, err)
		if !r.Read.IsZero() {
			d.Took = now.Sub(r.Read)
		}
		if weight > 0 && !d.Back {
			entry := top.Decision{Domain: d.Domain, Rule: d.Rule, Entries: d.Entries, Hits: counted(d.Hits)}
			if d.Over && d.Outcome.Rejects() {
				entry.Rejected, entry.Denied = 1, d.Outcome == watch.Blocked
			}
			l.config.Top.Add(&entry, weight, every)
		}
		if watched {
			l.config.Watch.Publish(ctx, d, now)
		}
	}
}

// observed returns the decision on the i-th descriptor of r.
func (l *Limiter) observed(r *Request, p *Scratch, i int, err error) watch.Decision {
	desc := &r.Descriptors[i]
	d := watch.Decision{Domain: r.Domain, Entries: desc.Entries[:min(len(desc.Entries), MaxEntries)]}
	d.Hits, d.Back = r.hits(desc), desc.Negative
	if len(p.parts) == 0 { // it did not come so far
		if rule := l.Matched(r.Domain, d.Entries); rule != nil {
			d.Rule = rule.Path
		}
	} else if t := &p.parts[i]; t.Rule != nil {
		d.Rule = t.Rule.Path
	}
	if err != nil {
		d.Outcome, d.Err = watch.Failed, err
		return d
	}
	t, s := &p.parts[i], &p.verdict.Statuses[i]
	if t.reserving != reservesNothing {
		d.Hits, d.Back = p.reserved(t)
	}
	d.Outcome, d.Over = s.Outcome, p.verdict.Over
	if c := s.Control; c != nil {
		d.Control = c.String()
		if c.Kind != controls.Limit {
			d.Source, d.Retry = watch.Control, s.Decision.RetryAfter
		}
	}
	d.Own, d.Limit = s.Override, s.RateLimit
	if t.op < 0 {
		return d
	}
	if s.Exceeded() && s.Outcome != watch.ChargedLate {
		d.Retry = s.Decision.RetryAfter
	} else {
		d.Left = t.left(&s.Decision)
	}
	d.Source = [...]watch.Source{
		backend.FromStore: watch.Store, backend.FromRejection: watch.NearCache, backend.FromLease: watch.Lease,
	}[p.ops[t.op].Origin]
	if t.fallback != descriptors.FailDefault {
		d.Source, d.Policy = watch.Policy, t.fallback
	}
	return d
}
