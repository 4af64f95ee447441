package admin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
)

// codedError is an error with its gRPC code.
type codedError struct {
	code codes.Code
	text string
}

// Error implements error.
func (e *codedError) Error() string { return e.text }

// invalidf returns an error for a request that is invalid with any rules and counters.
func invalidf(format string, args ...any) error {
	return &codedError{codes.InvalidArgument, fmt.Sprintf(format, args...)}
}

// notFoundf returns an error for a missing object.
func notFoundf(format string, args ...any) error {
	return &codedError{codes.NotFound, fmt.Sprintf(format, args...)}
}

var (
	errNoEntries     = invalidf("the descriptor has no entries: add at least one, starting at the root of the rules")
	errContradiction = invalidf("requests_per_unit and large_requests_per_unit differ: set only the one that you mean")
	errRulesChanged  = &codedError{codes.Aborted, "the rules changed since the previous page: start again without page_token"}
)

// longestMessage bounds a message in bytes. Many clients accept at most 8 KiB of trailers, and a byte may be encoded as three.
const longestMessage = 2000

// statusOf returns the status for err. The text of err may quote the request.
func statusOf(ctx context.Context, err error) error {
	text := err.Error()
	if len(text) > longestMessage {
		const half = longestMessage / 2 // the quoted request is in the middle, the hint at the end
		text = text[:half] + " … " + text[len(text)-half:]
	}
	return status.Error(codeOf(ctx, err), valid(text))
}

func codeOf(ctx context.Context, err error) codes.Code {
	var wrong controls.InvalidError
	switch own, ok := errors.AsType[*codedError](err); {
	case ok:
		return own.code
	case errors.As(err, &wrong), errors.Is(err, limiter.ErrNoHits), errors.Is(err, limiter.ErrNumber),
		errors.Is(err, limiter.ErrEmptyDomain), errors.Is(err, limiter.ErrNoDescriptors),
		errors.Is(err, limiter.ErrTooManyDescriptors), errors.Is(err, limiter.ErrTooManyEntries), errors.Is(err, tenants.ErrPage):
		return codes.InvalidArgument
	case errors.Is(err, limiter.ErrNoLimit), errors.Is(err, controls.ErrUnknown):
		return codes.NotFound
	case errors.Is(err, controls.ErrFull), errors.Is(err, tenants.ErrFull):
		return codes.ResourceExhausted
	case errors.Is(err, limiter.ErrNoGrant), errors.Is(err, ErrNoPreview), errors.Is(err, ErrStopping), errors.Is(err, tenants.ErrNoStore):
		return codes.FailedPrecondition
	case errors.Is(err, limiter.ErrMayBeGranted):
		return mayBeDone
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Code()
	default: // no rules, or a backend error
		return codes.Unavailable
	}
}
