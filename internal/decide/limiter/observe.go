package limiter

import (
	"context"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Observer receives decisions, for example for statistics or for live display. It must be safe for concurrent use.
type Observer interface {
	// Wants reports whether to call Observe for a request. It is called for each request.
	Wants(s *Sample) bool
	// Observe is called with the decision on each descriptor. It must not retain decisions.
	Observe(ctx context.Context, s *Sample, decisions []Decision)
}

// Sample is the state of an [Observer] in a [Scratch]; it needs no lock. The limiter sets only Hits.
type Sample struct {
	Hits  uint64 // the largest number of hits of a descriptor; at least 1, unless all descriptors refund
	Skip  uint64 // hits until the next sampled request
	Every uint32 // one hit in Every is sampled; 0 before the first one
	Drawn bool   // the current request is sampled
}

// DecidedBy identifies the source of a decision on a descriptor.
type DecidedBy uint8

// The sources.
const (
	ByNothing   DecidedBy = iota // nothing: no decision was necessary, or it failed
	ByStore                      // the store of the counters, which may be this process
	ByNearCache                  // a rejection that this process remembered
	ByLease                      // hits that this process leased in advance
	ByFallback                   // the rule's on_failure, because the store failed
	ByControl                    // an operator's control
)

// Decision is the decision on one descriptor of a request.
type Decision struct {
	Facts

	Time    time.Time
	Domain  []byte
	Entries []descriptors.Entry
	Limit   *descriptors.RateLimit // nil if none
}

// Facts describe a decision without its subject.
type Facts struct {
	Rule     string // path; empty if no rule matched
	Outcome  Outcome
	Over     bool // the answer to the request was OVER_LIMIT
	By       DecidedBy
	Policy   descriptors.OnFailure // the fallback, if By is ByFallback
	Control  string                // the control that decided or set the limit's number, as kind:id; empty if none
	Override bool                  // the limit is an override of the request
	Hits     uint64
	Refund   bool // the hits were refunded
	Left     uint64
	Retry    time.Duration // time until the rejected request would be admitted
	Took     time.Duration // time since the request was read; 0 if unknown
	Err      error         // the reason why the request failed
}

// wanted reports whether Config.Observer wants r.
func (l *Limiter) wanted(r *Request, p *Scratch) bool {
	if l.config.Observer == nil {
		return false
	}
	p.sample.Hits = r.most()
	return l.config.Observer.Wants(&p.sample)
}

// most returns the largest number of hits of a descriptor of r, ignoring refunds. A check without hits counts as one hit, so that
// rejected checks are sampled too.
func (r *Request) most() (hits uint64) {
	for i := range r.Descriptors {
		if d := &r.Descriptors[i]; !d.refunds() {
			hits = max(hits, r.hits(d), 1)
		}
	}
	return hits
}

// observe passes the decisions on r to Config.Observer. p has parts if r reached the phase resolve; err is the reason if there is no
// verdict.
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
	clear(all) // do not retain references to the request
	p.shown = all
}

// observed returns the decision on the i-th descriptor of r.
func (l *Limiter) observed(r *Request, p *Scratch, i int, err error) Decision {
	desc := &r.Descriptors[i]
	d := Decision{Domain: r.Domain, Entries: desc.Entries[:min(len(desc.Entries), MaxEntries)]}
	d.Hits, d.Refund = r.hits(desc), desc.Negative
	if len(p.parts) == 0 { // it was not resolved
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
		d.Hits, d.Refund = p.reserved(t)
	}
	d.Outcome, d.Over = s.Outcome, p.verdict.Over
	if d.Refund && d.Outcome == ChargedLate { // a settlement that refunds
		d.Outcome = Admitted
	}
	if c := s.Control; c != nil {
		d.Control = c.String()
		if c.Kind != override.Limit {
			d.By, d.Retry = ByControl, s.Decision.RetryAfter
		}
	}
	d.Override, d.Limit = s.Override, s.RateLimit
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
