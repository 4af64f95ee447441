package limiter

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Observer is shown decisions, such as for statistics or for people who watch. It must be safe for concurrent use.
type Observer interface {
	// Wants reports whether to call Observe for a request. It is called for each request.
	Wants(s *Sample) bool
	// Observe is called with the decision on each descriptor. It must keep nothing of decisions.
	Observe(ctx context.Context, s *Sample, decisions []Decision)
}

// Sample is the memory of an [Observer]: one for each [Scratch], so that it needs no lock. The limiter only sets Hits.
type Sample struct {
	Hits  uint64 // of the descriptor of the request that spends the most; at least 1, unless all are refunds
	Skip  uint64 // hits until the next request that is drawn
	Every uint32 // hits of which one is drawn; 0 before the first one
	Drawn bool   // the request is
}

// DecidedBy identifies what decided a descriptor.
type DecidedBy uint8

// What decides.
const (
	ByNothing   DecidedBy = iota // there was nothing to decide, or it failed
	ByStore                      // the store of the counters, which may be this process
	ByNearCache                  // a rejection that this process remembered
	ByLease                      // hits that this process fetched in advance
	ByFallback                   // the rule's on_failure, because the store failed
	ByControl                    // an operator's control
)

// Decision is the decision on one descriptor of a request.
type Decision struct {
	Facts

	Time    time.Time
	Domain  []byte
	Entries []descriptors.Entry
	Limit   *descriptors.RateLimit // nil if there is none
}

// Facts are what is known of a decision beside its subject.
type Facts struct {
	Rule    string // path; empty if the descriptor matched none
	Outcome Outcome
	Over    bool // the answer to the request as a whole was OVER_LIMIT
	By      DecidedBy
	Policy  descriptors.OnFailure // if that decided
	Control string                // that decided, or set the limit's number, as kind:id; empty if none did
	Own     bool                  // the limit came with the request
	Hits    uint64
	Back    bool // the hits were refunded
	Left    uint64
	Retry   time.Duration // until a rejected request would pass
	Took    time.Duration // since the request was read; 0 if that is not known
	Err     error         // why there is no answer
}

// wanted reports whether Config.Observer wants r.
func (l *Limiter) wanted(r *Request, p *Scratch) bool {
	if l.config.Observer == nil {
		return false
	}
	p.sample.Hits = r.most()
	return l.config.Observer.Wants(&p.sample)
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

// observe shows the decisions on r to Config.Observer. p has its parts if deciding came so far; err is why there is no verdict.
func (l *Limiter) observe(ctx context.Context, r *Request, p *Scratch, err error) {
	now, all := time.Now(), p.shown[:0]
	if len(r.Descriptors) == 0 {
		all = append(all, Decision{Domain: r.Domain, Facts: Facts{Outcome: Failed, Err: err}, Time: now})
	}
	for i := range r.Descriptors[:min(len(r.Descriptors), MaxDescriptors)] {
		d := l.observed(r, p, i, err)
		if d.Time = now; !r.Read.IsZero() {
			d.Took = now.Sub(r.Read)
		}
		all = append(all, d)
	}
	l.config.Observer.Observe(ctx, &p.sample, all)
	clear(all) // what it points to belongs to the request
	p.shown = all
}

// observed returns the decision on the i-th descriptor of r.
func (l *Limiter) observed(r *Request, p *Scratch, i int, err error) Decision {
	desc := &r.Descriptors[i]
	d := Decision{Domain: r.Domain, Entries: desc.Entries[:min(len(desc.Entries), MaxEntries)]}
	d.Hits, d.Back = r.hits(desc), desc.Negative
	if len(p.parts) == 0 { // it did not come so far
		if rule := l.Matched(r.Domain, d.Entries); rule != nil {
			d.Rule = rule.Path
		}
	} else if t := &p.parts[i]; t.Rule != nil {
		d.Rule = t.Rule.Path
	}
	if err != nil {
		d.Outcome, d.Err = Failed, err
		return d
	}
	t, s := &p.parts[i], &p.verdict.Statuses[i]
	if t.reserving != reservesNothing {
		d.Hits, d.Back = p.reserved(t)
	}
	d.Outcome, d.Over = s.Outcome, p.verdict.Over
	if c := s.Control; c != nil {
		d.Control = c.String()
		if c.Kind != override.Limit {
			d.By, d.Retry = ByControl, s.Decision.RetryAfter
		}
	}
	d.Own, d.Limit = s.Override, s.RateLimit
	if t.op < 0 {
		return d
	}
	if s.Exceeded() && s.Outcome != ChargedLate {
		d.Retry = s.Decision.RetryAfter
	} else {
		d.Left = t.left(&s.Decision)
	}
	d.By = [...]DecidedBy{
		backend.FromStore: ByStore, backend.FromRejection: ByNearCache, backend.FromLease: ByLease,
	}[p.ops[t.op].Origin]
	if t.fallback != descriptors.FailDefault {
		d.By, d.Policy = ByFallback, t.fallback
	}
	return d
}
