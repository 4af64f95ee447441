package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// invalidError is the error of a request that can never be answered, whatever the rules and the counters.
type invalidError string

// Error says what is wrong, and what would be right.
func (e invalidError) Error() string { return string(e) }

func invalidf(format string, args ...any) error { return invalidError(fmt.Sprintf(format, args...)) }

// notFoundError is the error of a request about something that there is not.
type notFoundError string

// Error says what there is not, and what there is.
func (e notFoundError) Error() string { return string(e) }

// penaltyError is the error of a reset that a penalty prevents; it is how long the penalty will still run.
type penaltyError time.Duration

// Error says for how long, and what can be done about it.
func (e penaltyError) Error() string {
	return fmt.Sprintf("a penalty runs for another %s: wait, or set force to end it", descriptors.WaitText(time.Duration(e)))
}

// longestMessage is the most bytes of a message: many clients take no more than 8 KiB of trailers, and a byte may take three.
const longestMessage = 2000

// statusOf returns the status for err, whose text may have in it what was asked.
func statusOf(ctx context.Context, err error) error {
	text := err.Error()
	if len(text) > longestMessage {
		const half = longestMessage / 2 // what was asked is in the middle, what would be right at the end
		text = text[:half] + " … " + text[len(text)-half:]
	}
	return status.Error(codeOf(ctx, err), valid(text))
}

func codeOf(ctx context.Context, err error) codes.Code {
	var (
		invalid invalidError
		missing notFoundError
		runs    penaltyError
		wrong   controls.InvalidError
	)
	switch {
	case errors.As(err, &invalid), errors.As(err, &wrong), errors.Is(err, limiter.ErrNoHits), errors.Is(err, limiter.ErrNumber),
		errors.Is(err, limiter.ErrEmptyDomain), errors.Is(err, limiter.ErrNoDescriptors),
		errors.Is(err, limiter.ErrTooManyDescriptors), errors.Is(err, limiter.ErrTooManyEntries), errors.Is(err, tenants.ErrPage):
		return codes.InvalidArgument
	case errors.Is(err, limiter.ErrNoLimit), errors.Is(err, controls.ErrUnknown), errors.As(err, &missing):
		return codes.NotFound
	case errors.Is(err, controls.ErrFull), errors.Is(err, tenants.ErrFull):
		return codes.ResourceExhausted
	case errors.As(err, &runs), errors.Is(err, limiter.ErrNoGrant), errors.Is(err, ErrNoPreview), errors.Is(err, ErrStopping), errors.Is(err, tenants.ErrNoStore):
		return codes.FailedPrecondition
	case errors.Is(err, errRulesChanged):
		return codes.Aborted
	case errors.Is(err, limiter.ErrMayBeGranted):
		return mayBeDone
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Code()
	default: // no rules, or the store
		return codes.Unavailable
	}
}
