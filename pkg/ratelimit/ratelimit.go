// Package ratelimit applies rate-limit rules within a program, without a server.
//
// A [Limiter] has the rules of ratelimitd and a backend: counters in memory or in Redis. A server with the same rules and the same Redis
// uses the same counters, unless it has CACHE_KEY_SECRET_FILE or REDIS_KEY_FORMAT=reference. Controls, tenants, reservations and metrics
// need a server; a rule with plans applies its plan default.
//
// This package is optional: the core works without it.
package ratelimit

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Limiter decides requests by rules. It is safe for concurrent use. To change the rules, create another Limiter with the same backend,
// which keeps the counters.
type Limiter struct {
	set     *descriptors.Set
	backend backend.Backend
	local   backend.Backend // for rules with `on_failure: local`
}

// Result is the decision on one call.
type Result struct {
	OK         bool          // the limit admits the hits, or there is none, or the rule is in shadow mode
	Rule       string        // path of the rule, such as shop.user; empty without a limit
	Remaining  uint64        // until the counter is as if unused
	ResetAfter time.Duration // until nothing is spent any more
	RetryAfter time.Duration // until the same hits would be admitted; 0 if OK
	Wait       time.Duration // until the turn of hits queued by leaky_bucket
}

// New returns a limiter with the rules of a YAML document. The caller owns the backend and closes it after the last call.
func New(rules []byte, b backend.Backend) (*Limiter, error) {
	return load(descriptors.Source{Name: "rules", Data: rules}, b)
}

// Open is [New] with the rules of a file.
func Open(path string, b backend.Backend) (*Limiter, error) {
	rules, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading rules: %w", err)
	}
	return load(descriptors.Source{Name: path, Data: rules}, b)
}

func load(s descriptors.Source, b backend.Backend) (*Limiter, error) {
	set, _, err := descriptors.Load([]descriptors.Source{s}, descriptors.Options{})
	if err != nil {
		return nil, fmt.Errorf("loading rules: %w", err)
	}
	return &Limiter{set: set, backend: b, local: memory.New(memory.Config{})}, nil
}

// Allow consumes one hit of a descriptor, given as alternating keys and values, and reports whether the limit admits it. It returns true
// if no rule matches. An error means that the backend failed; the rule's on_failure then determines the result, which is false by
// default.
func (l *Limiter) Allow(ctx context.Context, domain string, kv ...string) (bool, error) {
	r, err := l.Take(ctx, 1, domain, kv...)
	return r.OK, err
}

// Take is [Limiter.Allow] for any number of hits, which are admitted together or not at all. It returns the details. 0 hits check without
// consuming.
func (l *Limiter) Take(ctx context.Context, hits uint64, domain string, kv ...string) (Result, error) {
	return l.apply(ctx, backend.Take, hits, domain, kv)
}

// Refund refunds hits that were not needed, or releases slots of a concurrency rule.
func (l *Limiter) Refund(ctx context.Context, hits uint64, domain string, kv ...string) error {
	_, err := l.apply(ctx, backend.Refund, hits, domain, kv)
	return err
}

func (l *Limiter) apply(ctx context.Context, mode backend.Mode, hits uint64, domain string, kv []string) (Result, error) {
	if len(kv)%2 != 0 {
		return Result{}, fmt.Errorf("ratelimit: %d keys and values: each key needs a value", len(kv))
	}
	entries := make([]descriptors.Entry, len(kv)/2)
	for i := range entries {
		entries[i] = descriptors.Entry{Key: []byte(kv[2*i]), Value: []byte(kv[2*i+1])}
	}
	d := l.set.Domain([]byte(domain))
	if d == nil {
		return Result{OK: true}, nil
	}
	match := d.Match(entries)
	rule := match.Rule
	if rule == nil || rule.Unlimited {
		return Result{OK: true}, nil
	}
	op := backend.Op{
		Key: descriptors.Hash(match.AppendName(nil, d, entries, false)), Limits: rule.RateLimits.Limits(), Mode: mode,
		Take: engine.Take{Cost: hits, Count: 1}, Penalty: rule.Penalty, Lease: backend.Lease(rule.Lease), Flow: backend.Flow(d.ID),
	}
	if rule.OnFailure <= descriptors.FailError {
		op.Wait = backend.WaitFull
	}
	if holder, ok := match.Holder(entries); ok {
		op.Take.Owner = string(holder)
	}
	asked := []backend.Op{op}
	l.backend.Apply(ctx, asked)
	err := asked[0].Err
	if err != nil {
		err = fmt.Errorf("ratelimit: asking the backend: %w", err)
		if rule.OnFailure != descriptors.FailLocal {
			return Result{OK: rule.OnFailure == descriptors.FailAllow, Rule: rule.Path}, err
		}
		asked[0] = op
		l.local.Apply(ctx, asked)
	}
	made := &asked[0].Decision
	r := Result{OK: made.Admitted > 0 || rule.Shadow, Rule: rule.Path, ResetAfter: made.ResetAfter, Wait: made.Wait}
	if !r.OK {
		r.RetryAfter = made.RetryAfter
	}
	if made.Admitted > 0 {
		r.Remaining = made.Left
		if mode == backend.Take {
			r.Remaining -= min(hits, made.Left)
		}
	}
	return r, err
}
