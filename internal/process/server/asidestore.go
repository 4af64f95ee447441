package server

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// asideAtOnce is how many operations for operators are sent at a time: Redis takes less than a millisecond for them, and they have less
// than 64 KiB, so that decisions, which come in between, do not wait for long.
const asideAtOnce = 64

// asideStore asks Redis for operators over a connection of their own, so that no decision is queued behind what they ask. It says nothing
// of what it meets there, since decisions meet it too.
type asideStore struct {
	*redis.Backend // for decisions

	aside *redis.Backend // for operators; nil if there are none
}

// Run runs both.
func (s asideStore) Run(ctx context.Context) error {
	if s.aside == nil {
		return s.Backend.Run(ctx)
	}
	var other sync.WaitGroup
	defer other.Wait()
	other.Go(func() { _ = s.aside.Run(ctx) }) // which fails as the other one does
	return s.Backend.Run(ctx)
}

// Apply implements [backend.Backend]. Where the near cache adds operations they come first.
func (s asideStore) Apply(ctx context.Context, ops []backend.Op) {
	if s.aside == nil || !ops[len(ops)-1].Aside {
		s.Backend.Apply(ctx, ops)
		return
	}
	for part := range slices.Chunk(ops, asideAtOnce) {
		s.aside.Apply(ctx, part)
	}
}

// Close implements [backend.Backend].
func (s asideStore) Close() error {
	if s.aside == nil {
		return s.Backend.Close()
	}
	return errors.Join(s.aside.Close(), s.Backend.Close())
}
