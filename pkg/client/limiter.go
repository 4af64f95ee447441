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

// Descriptor says what is limited: keys and their values, in order. Rules are trees: the first key is looked up at the top of
// the domain, the next one below it, and so on.
type Descriptor struct {
	entries []*common.RateLimitDescriptor_Entry
}

// Pairs returns the descriptor with these keys and values, in turn: Pairs("user", "alice", "path", "/login"). Bytes that
// are not UTF-8 become U+FFFD, several in a row one. It panics if the last key has no value.
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

// Limiter asks about descriptors. It is a view of its client, and any number of them may be made, even one for each request. It has
// nothing to close, and is safe for concurrent use.
type Limiter struct {
	client      *Client
	descriptors []Descriptor
}

// Limiter returns a limiter for what d describe, all in one question. Each of them is decided by a rule of its own, and
// spends its hits even if another one rejects, unless the domain has `charge: together`.
func (c *Client) Limiter(d ...Descriptor) *Limiter { return &Limiter{client: c, descriptors: d} }

// Allow reports whether a hit may happen now, and spends it if so. It is AllowN(ctx, 1).
func (l *Limiter) Allow(ctx context.Context) bool { return l.AllowN(ctx, 1) }

// AllowN reports whether n hits may happen now, and spends them if so, all or none. Where the rule is a queue (leaky_bucket), they
// may happen only when their turn comes: use [Limiter.Wait]. Without an answer, Config.FailOpen decides, and Config.OnError gets
// the error. Once ctx has ended it is false.
func (l *Limiter) AllowN(ctx context.Context, n int) bool {
	r, _ := l.Take(ctx, n)
	return r.OK
}

// Take is AllowN with the whole answer. With an error, OK is what Config.FailOpen decides, and nothing else is known, not even
// whether the hits were spent.
func (l *Limiter) Take(ctx context.Context, n int) (Result, error) { return l.ask(ctx, n, false) }

// Peek returns what [Limiter.Allow] would find, and spends nothing.
func (l *Limiter) Peek(ctx context.Context) (Result, error) { return l.ask(ctx, 0, false) }

// Refund refunds n hits that were spent but not used. It never leaves more than the full limit, and does nothing to a
// queue (leaky_bucket).
func (l *Limiter) Refund(ctx context.Context, n int) error {
	_, err := l.ask(ctx, n, true)
	return err
}

// ask sends one question. With an error, the result says what Config.FailOpen decided.
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
		ended = context.DeadlineExceeded // of the caller, which the server may notice before this process does
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

// Wait waits until a hit may happen. It is WaitN(ctx, 1).
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN takes n hits, and returns nil when they may happen: under leaky_bucket when their turn comes, under other algorithms as
// soon as they are admitted. It checks before it takes, so that hits are only spent without effect if others come in between. It
// checks again when the server says that the hits might pass. The server must have DECISION_METADATA=true; otherwise WaitN fails
// with [ErrNoTurn].
//
// If the deadline of ctx comes before the turn, it returns immediately, with an error that is [context.DeadlineExceeded]. If ctx
// ends while it waits, it returns ctx.Err(); a turn that was taken by then is lost, since turns cannot be refunded. With a limit of
// 0, or more hits than can ever pass, it returns [ErrOverLimit]. Without an answer it returns immediately: nil if Config.FailOpen
// says so, and otherwise the error.
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

// pause waits for d, and fails immediately if ctx would end before.
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

// late returns an error if ctx ends within d.
func late(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return fmt.Errorf("client: the turn comes in %v, after the deadline: %w", d, context.DeadlineExceeded)
	}
	return nil
}
