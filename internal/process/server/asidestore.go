package server

import (
	"context"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// asideAtOnce is how many operations for operators are sent at a time: Redis takes less than a millisecond for them, and they have less
// than 64 KiB, so that decisions, which come in between, do not wait for long.
const asideAtOnce = 64

// asideStore asks Redis for operators over a connection of its own, so that no decision is queued behind what they ask.
type asideStore struct{ *redis.Backend }

// Apply implements [backend.Backend].
func (s asideStore) Apply(ctx context.Context, ops []backend.Op) {
	for part := range slices.Chunk(ops, asideAtOnce) {
		s.Backend.Apply(ctx, part)
	}
}
