package rls

import (
	"context"
	"errors"
	"net/http"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Content types of what JSON returns.
const (
	typeJSON  = "application/json"
	typePlain = "text/plain; charset=utf-8"
)

// JSON answers a RateLimitRequest in protobuf's JSON, in which unknown fields are refused, with the status 200 where it
// passes and 429 where it is over a limit. What is no request, or one that cannot be decided for lack of a domain, of
// descriptors or of rules, is 400, as with the reference; a store that fails, or a ctx that ends, is 503.
func (s *Service) JSON(ctx context.Context, body []byte) (code int, contentType string, answer []byte) {
	var request ratelimitv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		return plain(http.StatusBadRequest)
	}
	message, err := proto.Marshal(&request)
	if err != nil {
		return plain(http.StatusBadRequest)
	}
	c := s.calls.Get().(*call)
	c.hold(mem.BufferSlice{mem.SliceBuffer(message)})
	a, err := s.answer(ctx, c, time.Now())
	if err != nil {
		return plain(httpStatus(err))
	}
	var response ratelimitv3.RateLimitResponse
	if err := proto.Unmarshal(a.ReadOnlyData(), &response); err != nil {
		return plain(http.StatusInternalServerError)
	}
	answer, err = protojson.Marshal(&response)
	if err != nil {
		return plain(http.StatusInternalServerError)
	}
	if response.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		return http.StatusTooManyRequests, typeJSON, answer
	}
	return http.StatusOK, typeJSON, answer
}

func plain(code int) (status int, contentType string, answer []byte) {
	return code, typePlain, []byte(http.StatusText(code) + "\n")
}

// unitName is how protobuf writes the unit of a request; it is a number where it has no name there.
func unitName(u descriptors.Unit) string { return typev3.RateLimitUnit(u).String() }

func httpStatus(err error) int {
	switch {
	case invalid(err), errors.Is(err, limiter.ErrNoRules):
		return http.StatusBadRequest
	case errors.Is(err, errPanic):
		return http.StatusInternalServerError
	default:
		return http.StatusServiceUnavailable
	}
}
