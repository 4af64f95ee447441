package rls

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
)

// errOverload is returned for a call that was shed.
var errOverload = status.Error(codes.Unavailable, limiter.ErrOverload.Error())

// errLate is returned for a call whose deadline has passed.
var errLate = status.Error(codes.DeadlineExceeded, "the caller's deadline has passed")

// status returns the gRPC error for the caller. Mistakes of the caller are INVALID_ARGUMENT. A cancelled or expired call is CANCELLED or
// DEADLINE_EXCEEDED. Everything else that prevents a decision is UNAVAILABLE, including a backend that did not answer in time although
// the caller's deadline has not passed.
func (s *Service) status(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, grpcserver.ErrPanic):
		return err
	case invalid(err):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, limiter.ErrNoRules):
		if s.config.NoRules != nil {
			if why := s.config.NoRules(); why != "" {
				err = fmt.Errorf("%w: %s", err, why)
			}
		}
		return status.Error(codes.Unavailable, err.Error())
	case errors.Is(ctx.Err(), context.Canceled):
		return status.Error(codes.Canceled, "the caller gave up")
	case expired(ctx, time.Now()):
		return errLate
	default:
		return status.Error(codes.Unavailable, err.Error())
	}
}

// invalid reports whether err is a mistake of the caller.
func invalid(err error) bool {
	return errors.Is(err, limiter.ErrEmptyDomain) || errors.Is(err, limiter.ErrNoDescriptors) ||
		errors.Is(err, limiter.ErrTooManyDescriptors) || errors.Is(err, limiter.ErrTooManyEntries) ||
		errors.Is(err, errMalformed) || errors.Is(err, errTooDeep)
}

// expired reports whether the deadline of ctx has passed at now, even if its timer is late.
func expired(ctx context.Context, now time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ok && !now.Before(deadline)
}
