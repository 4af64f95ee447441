package rls

import (
	"context"
	"time"
)

// farAway is how long until a deadline beyond which a call is let in to be refused: grpc keeps the timer of a call that is refused on its
// arrival, about 300 bytes, until its deadline, which its client chooses and which may be years away.
const farAway = 2 * time.Second

// refusedCall is the context of a call that is let in to be refused.
type refusedCall struct {
	context.Context //nolint:containedctx // it is one

	err error
}

type refusedKey struct{}

// refuse refuses a call that has arrived, or has its handler do so by [refused].
func refuse(ctx context.Context, err error) (context.Context, error) {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) <= farAway {
		return nil, err
	}
	return &refusedCall{ctx, err}, nil
}

// refused returns why a call that was let in is refused, or nil.
func refused(ctx context.Context) error {
	err, _ := ctx.Value(refusedKey{}).(error)
	return err
}

// Value implements context.Context.
//
//nolint:ireturn // as there
func (r *refusedCall) Value(key any) any {
	if key == (refusedKey{}) {
		return r.err
	}
	return r.Context.Value(key)
}
