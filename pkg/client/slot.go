package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// Slot is a number of slots that [Limiter.Hold] has taken.
type Slot struct {
	limiter *Limiter
	n       int
	window  time.Duration // how long the server keeps it unless it is renewed
	every   time.Duration // how often it is renewed; 0 if it has no owner
	gone    chan struct{}

	mu    sync.Mutex
	until time.Time // when it ends at the earliest, by the clock of this process
	over  bool      // released or lost, or nothing was held
	lost  error     // ErrLost if so
	timer *time.Timer
}

// Hold takes a slot of a rule with `algorithm: concurrency`. It is HoldN(ctx, holder, 1).
func (l *Limiter) Hold(ctx context.Context, holder string) (*Slot, error) {
	return l.HoldN(ctx, holder, 1)
}

// HoldN takes n slots of a rule with `algorithm: concurrency`, for the limiter's only descriptor, or returns [ErrOverLimit]
// if so many are not free. They are held until [Slot.Release], whatever becomes of ctx.
//
// holder is the key that the rule has under `holder`. If the descriptor lacks it, it is added as the last entry, with a
// random value; if it is there, its value names the owner, and an owner that asks again holds the same slots, not further
// ones, which the first Release frees. They are renewed for as long as this process holds them; if it dies, they are free
// again after the rule's window.
// With an empty holder, for rules without one, nothing is renewed, and the slots end with the window.
//
// If ctx ends while it asks, HoldN still sees to the answer, for at most Config.Timeout, and refunds what it got. A
// question without an answer may leave slots taken until the window ends. Without an answer, Config.FailOpen grants a Slot
// that holds nothing.
func (l *Limiter) HoldN(ctx context.Context, holder string, n int) (*Slot, error) {
	if len(l.descriptors) != 1 || n < 1 {
		return nil, fmt.Errorf("client: holding %d slots of %d descriptors: it must be at least one slot of one", n, len(l.descriptors))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Slot{limiter: l.heldBy(holder), n: n, gone: make(chan struct{}), over: true}
	start := time.Now()
	r, err := s.limiter.Take(context.WithoutCancel(ctx), n)
	switch {
	case err != nil && !r.OK:
		return nil, err
	case !r.OK:
		return nil, fmt.Errorf("client: no slot is free: %w", ErrOverLimit)
	case ctx.Err() != nil && r.Limited:
		return nil, errors.Join(ctx.Err(), s.limiter.Refund(context.WithoutCancel(ctx), n))
	case !r.Limited: // no rule applies, or no server answered: a release could free another caller's slot
		return s, ctx.Err()
	}
	s.mu.Lock() // the timer may be quick
	defer s.mu.Unlock()
	s.window, s.until, s.over = r.Window, start.Add(r.Window), false
	if holder != "" {
		s.every = s.window / 3 // so that one renewal may fail
	}
	s.timer = time.AfterFunc(cmp.Or(s.every, time.Until(s.until)), s.tick)
	return s, nil
}

// heldBy returns l with an owner.
func (l *Limiter) heldBy(holder string) *Limiter {
	d := l.descriptors[0]
	if holder == "" || slices.ContainsFunc(d.entries, func(e *common.RateLimitDescriptor_Entry) bool { return e.GetKey() == holder }) {
		return l
	}
	return l.client.Limiter(Descriptor{append(slices.Clip(d.entries), Pairs(holder, rand.Text()).entries...)})
}

// tick renews the slot, or ends it.
func (s *Slot) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return
	}
	if start := time.Now(); s.every > 0 && start.Before(s.until) {
		ctx, cancel := context.WithDeadline(context.Background(), s.until)
		defer cancel()
		r, err := s.limiter.Take(ctx, s.n)
		if err == nil && r.OK {
			s.until = start.Add(s.window)
		} else if err == nil { // another caller has it
			s.until = start
		}
	}
	if left := time.Until(s.until); left > 0 {
		s.timer.Reset(min(left, s.every))
		return
	}
	s.lose()
}

func (s *Slot) lose() {
	s.over, s.lost = true, ErrLost
	close(s.gone)
}

// Lost returns a channel that is closed if the slot ends before it is released: because its window is over, because it
// could not be renewed in time, or because a renewal was rejected after the limit or the counter had been changed.
func (s *Slot) Lost() <-chan struct{} { return s.gone }

// Release releases the slot. Further calls do nothing. It waits for the answer for at most Config.Timeout; with an error from the
// server, the slot may remain taken until its window ends. It returns [ErrLost] if the slot had ended before: then another caller
// may have held it while this process still worked.
func (s *Slot) Release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return s.lost
	}
	s.timer.Stop()
	if !time.Now().Before(s.until) { // without an owner, another caller's slot would be freed
		s.lose()
		return s.lost
	}
	s.over = true
	return s.limiter.Refund(context.Background(), s.n)
}
