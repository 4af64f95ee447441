package limiter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// denyRetry is the time after which a client should repeat a request that the fallback deny rejected.
const denyRetry = time.Second

// ask sends ops to the backend and lets fallbacks decide those that failed. picked holds the index in p.ops of each op; nil means that
// ops is p.ops. If a failed op has no fallback, ask returns its error and there is no verdict; hits that other ops consumed stay
// consumed. If the context is done, no fallback applies. A part records the fallback of its last call only, because hits are refunded
// where that call consumed them.
func (l *Limiter) ask(ctx context.Context, p *Scratch, ops []backend.Op, picked []int) error {
	for _, i := range picked {
		p.parts[p.owners[i]].fallback = descriptors.FailDefault
	}
	err := l.apply(ctx, ops, p.late)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if err == ErrOverload { //nolint:errorlint // storeError returns it unwrapped
		l.counts.shed(p, shedByStore)
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
		if t.OnFailure == descriptors.FailError {
			return storeError(ops[i].Err)
		}
		t.fallback = t.OnFailure
		l.counts.fellBack(t)
		switch t.fallback {
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

// decideWithout lets fallbacks decide the failed operations of p, without counting them. It reports whether any has no fallback.
func (l *Limiter) decideWithout(ctx context.Context, p *Scratch) (failed bool) {
	for i := range p.ops {
		op, t := &p.ops[i], &p.parts[p.owners[i]]
		if op.Err == nil {
			continue
		}
		switch t.OnFailure {
		case descriptors.FailAllow:
			op.Decision = allowed(op)
		case descriptors.FailDeny:
			op.Decision = denied(op)
		case descriptors.FailLocal:
			local := []backend.Op{*op}
			l.config.Local.Apply(ctx, local)
			op.Decision = local[0].Decision
		case descriptors.FailDefault, descriptors.FailError:
			failed = true
		}
	}
	return failed
}

// Fallback returns the fallback of a rule or, if r is nil, of overrides that match no rule. It never returns FailDefault.
func (l *Limiter) Fallback(r *descriptors.Rule) descriptors.OnFailure { return l.config.policy(r) }

// policy returns the fallback of a rule, which may be nil.
func (c *Config) policy(r *descriptors.Rule) descriptors.OnFailure {
	if r != nil && r.OnFailure != descriptors.FailDefault {
		return r.OnFailure
	}
	return c.OnFailure
}

// allowed returns the decision of the fallback allow: nothing has been consumed yet.
func allowed(op *backend.Op) engine.Decision {
	return engine.Decision{Admitted: max(1, op.Take.Count), Left: op.Limits[0].Capacity()}
}

// denied returns the decision of the fallback deny. It never rejects a refund, but the refunded hits are lost.
func denied(op *backend.Op) engine.Decision {
	if op.Mode == backend.Refund || op.Mode == backend.Settle {
		return engine.Decision{Admitted: max(1, op.Take.Count)}
	}
	return engine.Decision{ResetAfter: denyRetry, RetryAfter: denyRetry}
}

// applyRefunds carries out the first n operations of the batch where their hits were consumed: in the backend, in this process or, if
// they were not counted, nowhere. It ignores cancellation of ctx. The verdict does not depend on it: a failed refund only causes more
// rejections.
func (l *Limiter) applyRefunds(ctx context.Context, p *Scratch, n int) {
	ctx = context.WithoutCancel(ctx)
	p.local = p.local[:0]
	stored := p.batch[:0]
	for k := range p.batch[:n] {
		switch t := &p.parts[p.owners[p.picked[k]]]; t.fallback {
		case descriptors.FailDefault:
			stored = append(stored, p.batch[k])
		case descriptors.FailLocal:
			p.local = append(p.local, p.batch[k])
		case descriptors.FailError, descriptors.FailAllow, descriptors.FailDeny:
		}
	}
	if len(stored) > 0 && l.apply(ctx, stored, false) != nil {
		l.counts.refundErrors.Add(1)
	}
	if len(p.local) > 0 {
		l.config.Local.Apply(ctx, p.local)
	}
}
