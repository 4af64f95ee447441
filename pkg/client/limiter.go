package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Descriptor is a list of keys and values that a limit applies to. The order matters: rules form a tree, whose first level matches the
// first key, the next level the second key, and so on.
type Descriptor struct {
	entries []*common.RateLimitDescriptor_Entry
}

// Pairs returns the descriptor with alternating keys and values: Pairs("user", "alice", "path", "/login"). Each run of bytes that are not
// UTF-8 becomes one U+FFFD. Pairs panics if the last key has no value.
func Pairs(kv ...string) Descriptor {
	if len(kv)%2 != 0 {
		panic(fmt.Sprintf("client: Pairs got %d arguments: each key needs a value", len(kv))) //nolint:forbidigo // a bug of the caller
	}
	var d Descriptor
	for pair := range slices.Chunk(kv, 2) {
		d.entries = append(d.entries, &common.RateLimitDescriptor_Entry{
			Key: strings.ToValidUTF8(pair[0], "\uFFFD"), Value: strings.ToValidUTF8(pair[1], "\uFFFD"),
		})
	}
	return d
}

// Limiter asks about descriptors. It is a cheap view of its client: a program may create one per request. It need not be closed, and is
// safe for concurrent use.
type Limiter struct {
	client      *Client
	descriptors []Descriptor
}

// Limiter returns a limiter that sends all descriptors in one request. Each descriptor is decided by its own rule and consumes its hits
// even if another one is rejected, unless the domain has `charge: together`.
func (c *Client) Limiter(d ...Descriptor) *Limiter { return &Limiter{client: c, descriptors: d} }

// Allow consumes one hit and reports whether it is admitted. It is AllowN(ctx, 1).
func (l *Limiter) Allow(ctx context.Context) bool { return l.AllowN(ctx, 1) }

// AllowN consumes n hits, all or none, and reports whether they are admitted. Hits admitted by a queue (leaky_bucket) still have to wait
// for their turn: use [Limiter.Wait]. If no server decides, AllowN returns Config.FailOpen, and Config.OnError gets the error. If ctx has
// ended, AllowN returns false.
func (l *Limiter) AllowN(ctx context.Context, n int) bool {
	r, _ := l.Take(ctx, n)
	return r.OK
}

// Take is AllowN with all details. With an error, OK is the decision of Config.FailOpen and all other fields are zero; the hits may have
// been consumed.
func (l *Limiter) Take(ctx context.Context, n int) (Result, error) { return l.ask(ctx, n, false) }

// Peek returns the result that [Limiter.Allow] would have, without consuming a hit.
func (l *Limiter) Peek(ctx context.Context) (Result, error) { return l.ask(ctx, 0, false) }

// Refund refunds n consumed hits. It never exceeds the full limit, and has no effect on a queue (leaky_bucket).
func (l *Limiter) Refund(ctx context.Context, n int) error {
	_, err := l.ask(ctx, n, true)
	return err
}

// ask sends one request. With an error, the result's OK is the decision of Config.FailOpen.
func (l *Limiter) ask(ctx context.Context, n int, refund bool) (Result, error) {
	if n < 0 {
		return Result{}, fmt.Errorf("client: a cost of %d: must be 0, which only checks, or more", n)
	}
	c := l.client
	q := &rls.RateLimitRequest{Domain: c.domain}
	for _, d := range l.descriptors {
		q.Descriptors = append(q.Descriptors, &common.RateLimitDescriptor{
			Entries: d.entries, HitsAddend: wrapperspb.UInt64(uint64(n)), IsNegativeHits: refund,
		})
	}
	until := time.Now().Add(c.config.Timeout)
	bounded, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	answer, err := c.service.ShouldRateLimit(bounded, q)
	if err == nil && answer.GetOverallCode() != rls.RateLimitResponse_UNKNOWN {
		return resultOf(answer), nil
	}
	err = cmp.Or(err, ErrNoVerdict)
	code, ended := status.Code(err), ctx.Err()
	if d, ok := ctx.Deadline(); ok && d.Before(until) && code == codes.DeadlineExceeded {
		ended = context.DeadlineExceeded // the caller's deadline, which the server may notice before this process does
	}
	if ended != nil {
		return Result{}, fmt.Errorf("client: asking %s: %w", c.addr, ended)
	}
	err = fmt.Errorf("client: asking %s: %w", c.addr, err)
	if c.config.OnError != nil {
		c.config.OnError(err)
	}
	open := c.config.FailOpen && code != codes.InvalidArgument && code != codes.ResourceExhausted
	return Result{Status: Status{OK: open}}, err
}

// Wait waits until a hit is admitted. It is WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN takes n hits and waits until their turn if the rule is a queue (leaky_bucket), or retries until they are admitted otherwise. It
// checks before it takes, so a take is rejected only if other callers intervene, and it checks again at the time that the server names.
// The server must have DECISION_METADATA=true; otherwise WaitN fails with [ErrNoTurn].
//
// If the deadline of ctx is before the turn, WaitN returns immediately, with an error that matches [context.DeadlineExceeded]. If ctx
// ends during the wait, it returns ctx.Err(); a turn already taken is lost, because turns cannot be refunded. If the limit is 0 or below
// n, so that the hits can never be admitted, it returns [ErrOverLimit]. If no server decides, it returns immediately: nil if
// Config.FailOpen is set, and otherwise the error.
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	for {
		r, err := l.Peek(ctx)
		if err == nil && r.OK && r.knowsTurn && late(ctx, r.Wait) == nil {
			r, err = l.Take(ctx, n)
		}
		switch {
		case err != nil && r.OK:
			return nil
		case err != nil:
			return err
		case !r.knowsTurn:
			return fmt.Errorf("client: asking %s: %w", l.client.addr, ErrNoTurn)
		case r.OK:
			return pause(ctx, r.Wait)
		case r.Limited && r.Limit == 0:
			return fmt.Errorf("client: waiting for %s, whose limit is 0: %w", r.Rule, ErrOverLimit)
		case r.RetryAfter == Never:
			return fmt.Errorf("client: waiting for %d hits of %s, which it never admits: %w", n, r.Rule, ErrOverLimit)
		}
		if err := pause(ctx, max(r.RetryAfter, 5*time.Millisecond)); err != nil {
			return err
		}
	}
}

// pause waits for d. It fails immediately if the deadline of ctx is earlier.
func pause(ctx context.Context, d time.Duration) error {
	if err := late(ctx, d); err != nil || d <= 0 {
		return err
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// late returns an error if the deadline of ctx is within d.
func late(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return fmt.Errorf("client: the turn comes in %v, after the deadline: %w", d, context.DeadlineExceeded)
	}
	return nil
}
