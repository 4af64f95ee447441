package limiter

import (
	"context"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/top"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Leased is the result of [Limiter.Lease].
type Leased struct {
	Effective Effective
	Shadow    bool // nothing is to be rejected

	// If the limits of a rule with rlqs decide, and outside of shadow mode.
	Key backend.Key // of the counter

	// If nothing failed either.
	Granted    uint64        // hits that were debited
	Left       uint64        // after that
	ResetAfter time.Duration // until the window ends, or the bucket is full
}

// Divides reports whether the limit of a rule with rlqs decides.
func (d *Leased) Divides() bool {
	return d.Effective.Disposition == Decide && d.Effective.Rule.RLQS != nil
}

// Lease debits hits, or as many as are left, from the counter of a descriptor, for clients that will use them. It goes by the same
// limits in force as [Limiter.Decide]. It debits nothing where controls decide, in shadow mode, and for a rule without rlqs. If the
// backend fails it returns the limits in force and an error.
func (l *Limiter) Lease(ctx context.Context, domain string, entries []descriptors.Entry, hits uint64) (Leased, error) {
	r := &Request{Domain: []byte(domain), Descriptors: []Descriptor{{Entries: entries, HasHits: true}}}
	s, err := l.accept(r)
	if err != nil {
		return Leased{}, err
	}
	p := new(Scratch)
	p.table = l.table()
	p.resolve(s, r)
	p.plan(r, false)
	leased := Leased{Effective: p.parts[0].Effective}
	leased.Shadow = l.config.Shadow || leased.Effective.Rule != nil && leased.Effective.Rule.Shadow
	if !leased.Divides() || leased.Shadow {
		return leased, nil
	}
	op := &p.ops[0]
	leased.Key = op.Key
	op.Take.Cost, op.Take.Count, op.Take.Extra = 1, 0, hits
	if hits == 0 {
		op.Mode, op.Take.Count = backend.Peek, 1
	}
	if err := l.apply(ctx, p.ops, false); err != nil {
		return leased, fmt.Errorf("leasing hits: %w", err)
	}
	if hits > 0 {
		leased.Granted = min(op.Decision.Admitted, hits)
	}
	leased.Left, leased.ResetAfter = op.Decision.Left-min(leased.Granted, op.Decision.Left), op.Decision.ResetAfter
	return leased, nil
}

// Decided counts, for top, the decisions of clients on a descriptor that matched a rule.
func (l *Limiter) Decided(domain, rule string, entries []descriptors.Entry, allowed, denied uint64) {
	if l.config.Top != nil {
		d := top.Decision{Domain: []byte(domain), Rule: rule, Entries: entries, Hits: allowed + denied, Rejected: denied}
		l.config.Top.Add(&d, 1, 1)
	}
}

// Divided returns the limit that clients divide, of the limits in force of a rule with rlqs.
func (e *Effective) Divided() *engine.Limit { return &e.Limits.Limits()[0] }
