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

// Slot is a set of slots taken by [Limiter.Hold].
type Slot struct {
	limiter *Limiter
	n       int
	window  time.Duration // time for which the server keeps the slots without renewal
	every   time.Duration // interval of renewals; 0 without an owner
	ended   chan struct{}

	mu    sync.Mutex
	until time.Time // earliest end of the slots, on this process's clock
	over  bool      // released or lost, or nothing was held
	lost  error     // ErrLost if lost
	timer *time.Timer
}

// Hold takes a slot of a rule with `algorithm: concurrency`. It is HoldN(ctx, holder, 1).
func (l *Limiter) Hold(ctx context.Context, holder string) (*Slot, error) {
	return l.HoldN(ctx, holder, 1)
}

// HoldN takes n slots of a rule with `algorithm: concurrency` for the limiter's only descriptor. It returns [ErrOverLimit] if fewer than
// n are free. They are held until [Slot.Release], even if ctx ends.
//
// holder is the key of the rule's `holder`. If the descriptor lacks this key, HoldN appends it with a random value. If the descriptor has
// it, its value names the owner: an owner that calls HoldN again holds the same slots, and the first Release frees them. Slots with an
// owner are renewed while this process holds them; if the process dies, they become free after the rule's window. With an empty holder,
// for rules without one, slots are not renewed and end with the window.
//
// If ctx ends during the call, HoldN still waits for the answer, for at most Config.Timeout, and refunds the slots. If the answer is
// lost, slots may remain taken until the window ends. If no server decides and Config.FailOpen is set, HoldN returns a Slot that holds
// nothing.
func (l *Limiter) HoldN(ctx context.Context, holder string, n int) (*Slot, error) {
	if len(l.descriptors) != 1 || n < 1 {
		return nil, fmt.Errorf("client: holding %d slots of %d descriptors: it must be at least one slot of one", n, len(l.descriptors))
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := &Slot{limiter: l.heldBy(holder), n: n, ended: make(chan struct{}), over: true}
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
	s.mu.Lock() // the timer may fire immediately
	defer s.mu.Unlock()
	s.window, s.until, s.over = r.Window, start.Add(r.Window), false
	if holder != "" {
		s.every = s.window / 3 // tolerates one failed renewal
	}
	s.timer = time.AfterFunc(cmp.Or(s.every, time.Until(s.until)), s.tick)
	return s, nil
}

// heldBy returns l with an owner in its descriptor.
func (l *Limiter) heldBy(holder string) *Limiter {
	d := l.descriptors[0]
	if holder == "" || slices.ContainsFunc(d.entries, func(e *common.RateLimitDescriptor_Entry) bool { return e.GetKey() == holder }) {
		return l
	}
	return l.client.Limiter(Descriptor{append(slices.Clip(d.entries), Pairs(holder, rand.Text()).entries...)})
}

// tick renews the slot, or marks it as lost.
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
		} else if err == nil { // another caller holds it
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
	close(s.ended)
}

// Lost returns a channel that is closed if the slot ends before its release: its window ended, renewals failed for too long, or a renewal
// was rejected because the limit or the counter changed.
func (s *Slot) Lost() <-chan struct{} { return s.ended }

// Release releases the slot. Further calls do nothing. It waits for the answer for at most Config.Timeout; with an error from the server,
// the slot may remain taken until its window ends. It returns [ErrLost] if the slot had already ended, so that another caller may have
// held it at the same time.
func (s *Slot) Release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return s.lost
	}
	s.timer.Stop()
	if !time.Now().Before(s.until) { // without an owner, the refund would free another caller's slot
		s.lose()
		return s.lost
	}
	s.over = true
	return s.limiter.Refund(context.Background(), s.n)
}
