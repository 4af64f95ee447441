package limiter

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// denyRetry is when somebody may come again who was denied because the store failed.
const denyRetry = time.Second

// ask lets the backend decide ops, and what it cannot decide, the rules' failure policies. picked tells which of p.ops each is;
// nil: they are p.ops. The error is that of an operation whose policy is to fail, and is the request's, because there is no
// verdict then; what the others spent stays spent. A caller that has gone is not answered by policy.
func (l *Limiter) ask(ctx context.Context, p *scratch, ops []backend.Op, picked []int) error {
	if err := l.apply(ctx, ops); err == nil || ctx.Err() != nil {
		return err
	}
	p.failed, p.local = p.failed[:0], p.local[:0]
	for i := range ops {
		if ops[i].Err == nil {
			continue
		}
		at := i
		if picked != nil {
			at = picked[i]
		}
		t := &p.parts[p.owners[at]]
		policy := l.policy(t)
		if policy == descriptors.FailError {
			return fmt.Errorf("%w: %w", ErrBackend, ops[i].Err)
		}
		t.fell = policy
		l.counts.fellBack(t)
		switch policy {
		case descriptors.FailAllow:
			ops[i].Decision = allowed(&ops[i])
		case descriptors.FailDeny:
			ops[i].Decision = denied(&ops[i])
		case descriptors.FailLocal:
			p.failed = append(p.failed, i)
			p.local = append(p.local, ops[i])
		case descriptors.FailDefault, descriptors.FailError:
		}
	}
	if len(p.local) == 0 {
		return nil
	}
	l.config.Local.Apply(ctx, p.local)
	for k, i := range p.failed {
		if err := p.local[k].Err; err != nil {
			return fmt.Errorf("%w: %w", ErrBackend, errors.Join(ops[i].Err, err))
		}
		ops[i].Decision = p.local[k].Decision
	}
	return nil
}

// policy is how t is decided while the store fails.
func (l *Limiter) policy(t *part) descriptors.OnFailure {
	if t.rule != nil && t.match.Rule.OnFailure != descriptors.FailDefault {
		return t.match.Rule.OnFailure
	}
	return l.config.OnFailure
}

// allowed is the decision on an op that its policy lets pass: as if nothing had been spent yet.
func allowed(op *backend.Op) engine.Decision {
	return engine.Decision{Admitted: max(1, op.Take.Count), Left: capacity(&op.Limits[0])}
}

// denied is the decision on an op that its policy refuses. What gives hits back is never refused; they are lost.
func denied(op *backend.Op) engine.Decision {
	if op.Mode == backend.Give {
		return engine.Decision{Admitted: max(1, op.Take.Count)}
	}
	return engine.Decision{ResetAfter: denyRetry, RetryAfter: denyRetry}
}

// applyBack gives back what the batch says, each where it was spent: in the store, in this process, or, where nothing was
// counted, nowhere. It does so also if the caller has gone meanwhile. The verdict stands without it; what cannot be
// given back only refuses more.
func (l *Limiter) applyBack(ctx context.Context, p *scratch, n int) {
	ctx = context.WithoutCancel(ctx)
	p.local = p.local[:0]
	stored := p.batch[:0]
	for k := range p.batch[:n] {
		switch t := &p.parts[p.owners[p.picked[k]]]; t.fell {
		case descriptors.FailDefault:
			stored = append(stored, p.batch[k])
		case descriptors.FailLocal:
			p.local = append(p.local, p.batch[k])
		case descriptors.FailError, descriptors.FailAllow, descriptors.FailDeny:
		}
	}
	if len(stored) > 0 && l.apply(ctx, stored) != nil {
		l.counts.giveBackErrors.Add(1)
	}
	if len(p.local) > 0 {
		l.config.Local.Apply(ctx, p.local)
	}
}

// fallbacks counts the decisions of a rule that its policy made, by policy; nil until there are any.
type fallbacks [descriptors.FailLocal + 1]atomic.Pointer[stats.Counter]

// fellBack counts a decision that t's policy makes instead of the store.
func (c *counts) fellBack(t *part) {
	known, rule := &c.overrides, "__override__"
	if t.rule != nil {
		known, rule = &t.rule.fallbacks, t.match.Rule.Path
	}
	n := known[t.fell].Load()
	if n == nil {
		n = c.registry.Counter("ratelimitd.backend_fallback_total", "rule", rule, "policy", t.fell.String())
		known[t.fell].Store(n)
	}
	n.Add(1)
}
