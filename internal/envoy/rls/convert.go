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

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Content types returned by [Service.JSON].
const (
	typeJSON  = "application/json"
	typePlain = "text/plain; charset=utf-8"
)

// JSON answers a RateLimitRequest in protobuf's JSON format, in which unknown fields are invalid. The status is 200 if the request passes
// and 429 if it is over a limit. As in the reference, it is 400 if body is not a valid request, lacks a domain or descriptor, or if there
// are no rules. It is 503 if the backend fails or ctx ends.
//
// JSON is part of this package rather than internal/process/web, so that web depends neither on the messages nor on their errors.
func (s *Service) JSON(ctx context.Context, body []byte) (code int, contentType string, reply []byte) {
	if objects(body) > maxObjects {
		s.bad.Add(1)
		return plain(http.StatusBadRequest)
	}
	var request ratelimitv3.RateLimitRequest
	if err := protojson.Unmarshal(body, &request); err != nil {
		return plain(http.StatusBadRequest)
	}
	message, err := proto.Marshal(&request)
	if err != nil {
		return plain(http.StatusBadRequest)
	}
	c := s.calls.Get().(*call)
	c.hold(mem.SliceBuffer(message))
	a := new(answer)
	if err := s.answer(ctx, c, a, time.Now()); err != nil {
		return plain(httpStatus(err))
	}
	var response ratelimitv3.RateLimitResponse
	if err := proto.Unmarshal(a.ReadOnlyData(), &response); err != nil {
		return plain(http.StatusInternalServerError)
	}
	reply, err = marshalJSON(&response)
	if len(reply) > maxAnswer && response.DynamicMetadata != nil { // JSON may take six bytes for one byte of protobuf
		response.DynamicMetadata = onlyTruncated(response.GetDynamicMetadata().GetFields()[reservation].GetStringValue())
		reply, err = marshalJSON(&response)
	}
	if err != nil {
		return plain(http.StatusInternalServerError)
	}
	if response.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT {
		return http.StatusTooManyRequests, typeJSON, reply
	}
	return http.StatusOK, typeJSON, reply
}

// marshalJSON returns m as JSON. Its initial buffer fits a usual answer. Without that, growing the buffer would copy a long answer many
// times, and allocate its size each time.
func marshalJSON(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{}.MarshalAppend(make([]byte, 0, proto.Size(m)*5/4), m)
}

// maxObjects is the maximum number of objects in a JSON request: enough for the maximum number of descriptors with 15 objects each. A
// request over gRPC may have more entries, because they take less memory there.
const maxObjects = 16 * limiter.MaxDescriptors

// objects counts the objects in JSON text; for invalid JSON the result is approximate. A decoder may allocate a hundred bytes for two
// bytes of text, so this runs before decoding.
func objects(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == '{' && !quoted:
			n++
		}
	}
	return n
}

// plain returns the text of an HTTP status as a response.
func plain(code int) (status int, contentType string, answer []byte) {
	return code, typePlain, []byte(http.StatusText(code) + "\n")
}

// unitName returns protobuf's name of a request's unit, or a number if it has none.
func unitName(u descriptors.Unit) string { return typev3.RateLimitUnit(u).String() }

// httpStatus returns the HTTP status for an error of answer.
func httpStatus(err error) int {
	switch {
	case invalid(err), errors.Is(err, limiter.ErrNoRules):
		return http.StatusBadRequest
	case errors.Is(err, grpcserver.ErrPanic):
		return http.StatusInternalServerError
	default:
		return http.StatusServiceUnavailable
	}
}
