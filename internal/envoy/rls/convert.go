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

// Content types of what [Service.JSON] returns.
const (
	typeJSON  = "application/json"
	typePlain = "text/plain; charset=utf-8"
)

// JSON answers a RateLimitRequest in protobuf's JSON, in which unknown fields are invalid. The status is 200 if the request passes
// and 429 if it is over a limit. As in the reference it is 400 if body is not a request, or one without a domain or a descriptor,
// or if there are no rules. It is 503 if the backend fails or ctx ends.
//
// It is here, and not with the other pages in internal/process/web, so that web needs to know neither messages nor their errors.
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
	if len(reply) > maxAnswer && response.DynamicMetadata != nil { // a byte of it may be six in JSON
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

// marshalJSON returns m as JSON. Its buffer has room from the start for a usual answer. Without that, a long answer would be copied
// many times over while it grows, and take its size each time.
func marshalJSON(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{}.MarshalAppend(make([]byte, 0, proto.Size(m)*5/4), m)
}

// maxObjects is how many objects a text of JSON may have: enough for as many descriptors as a request may have, with 15 objects
// in each. A request over gRPC may have more entries, because there they take less memory.
const maxObjects = 16 * limiter.MaxDescriptors

// objects counts the objects in a text of JSON, as far as the text is valid. A decoder may make a message of a hundred bytes from
// two bytes of text, so objects are counted before a decoder sees them.
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

func plain(code int) (status int, contentType string, answer []byte) {
	return code, typePlain, []byte(http.StatusText(code) + "\n")
}

// unitName returns how protobuf prints the unit of a request: a number if it has no name there.
func unitName(u descriptors.Unit) string { return typev3.RateLimitUnit(u).String() }

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
