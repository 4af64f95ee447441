package envoytest

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// FilterName is the name of the rate-limit filter, under which Envoy keeps what it knows for the filter.
const FilterName = "envoy.filters.http.ratelimit"

// Stream is a request and its answer, as the rate-limit filter sees them.
type Stream struct {
	Config *ratelimitv3.RateLimit
	Limits []*routev3.RateLimit // of its route

	Path, Remote string
	Request      http.Header
	Response     http.Header                 // nil before there is one
	Metadata     map[string]*structpb.Struct // dynamic, by namespace
}

// Call returns the call that the filter makes when the request comes, or when the stream is done; nil if there is none to
// make, because it would be without descriptors.
func (s *Stream) Call(done bool) (*rlsv3.RateLimitRequest, error) {
	r := &rlsv3.RateLimitRequest{Domain: s.Config.GetDomain()}
	for _, limit := range s.Limits {
		if limit.GetApplyOnStreamDone() != done {
			continue
		}
		d, err := s.descriptor(limit)
		if err != nil {
			return nil, err
		}
		if d != nil {
			r.Descriptors = append(r.Descriptors, d)
		}
	}
	if len(r.GetDescriptors()) == 0 {
		return nil, nil //nolint:nilnil // as the comment says
	}
	return r, nil
}

// Keep keeps the dynamic metadata of the answer to the first call.
func (s *Stream) Keep(answer *rlsv3.RateLimitResponse) {
	m := answer.GetDynamicMetadata()
	if len(m.GetFields()) == 0 {
		return
	}
	name := s.Config.GetMetadataNamespace()
	if name == "" {
		name = FilterName
	}
	s.set(name, m)
}

func (s *Stream) set(namespace string, m *structpb.Struct) {
	if s.Metadata == nil {
		s.Metadata = map[string]*structpb.Struct{}
	}
	s.Metadata[namespace] = m
}

// Value returns a value of the dynamic metadata; nil if it is not there.
func (s *Stream) Value(namespace, key string) *structpb.Value {
	return s.Metadata[namespace].GetFields()[key]
}

// descriptor returns what a rate limit makes of the stream as it is now; nil if it makes nothing of it.
func (s *Stream) descriptor(limit *routev3.RateLimit) (*rlcommonv3.RateLimitDescriptor, error) {
	entries, err := s.Entries(limit.GetActions())
	if err != nil || entries == nil {
		return nil, err
	}
	d := &rlcommonv3.RateLimitDescriptor{Entries: entries, HitsAddend: limit.GetHitsAddend().GetNumber()}
	if format := limit.GetHitsAddend().GetFormat(); format != "" {
		text, err := s.format(format)
		if err != nil {
			return nil, err
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil { // no number, or none known
			return nil, nil //nolint:nilerr,nilnil // Envoy leaves the descriptor out
		}
		d.HitsAddend = wrapperspb.UInt64(n)
	}
	return d, nil
}

// Entries returns the entries that actions make of the stream; nil if one of them has nothing to make an entry of, which
// leaves the descriptor out.
func (s *Stream) Entries(actions []*routev3.RateLimit_Action) ([]*rlcommonv3.RateLimitDescriptor_Entry, error) {
	var list []*rlcommonv3.RateLimitDescriptor_Entry
	for _, a := range actions {
		e, err := s.entry(a)
		if err != nil || e == nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

func (s *Stream) entry(action *routev3.RateLimit_Action) (*rlcommonv3.RateLimitDescriptor_Entry, error) {
	var e rlcommonv3.RateLimitDescriptor_Entry
	switch a := action.GetActionSpecifier().(type) {
	case *routev3.RateLimit_Action_RemoteAddress_:
		e.Key, e.Value = "remote_address", s.Remote
	case *routev3.RateLimit_Action_GenericKey_:
		e.Key, e.Value = a.GenericKey.GetDescriptorKey(), a.GenericKey.GetDescriptorValue()
	case *routev3.RateLimit_Action_RequestHeaders_:
		e.Key, e.Value = a.RequestHeaders.GetDescriptorKey(), s.header(a.RequestHeaders.GetHeaderName())
	case *routev3.RateLimit_Action_Metadata:
		m := a.Metadata
		path := m.GetMetadataKey().GetPath()
		if m.GetSource() != routev3.RateLimit_Action_MetaData_DYNAMIC || len(path) != 1 {
			return nil, fmt.Errorf("cannot play the action %v", action)
		}
		e.Key, e.Value = m.GetDescriptorKey(), s.Value(m.GetMetadataKey().GetKey(), path[0].GetKey()).GetStringValue()
		if e.GetValue() == "" {
			e.Value = m.GetDefaultValue()
		}
	default:
		return nil, fmt.Errorf("cannot play the action %v", action)
	}
	if e.GetKey() == "" {
		return nil, fmt.Errorf("cannot play the action %v, which names no key", action)
	}
	if e.GetValue() == "" {
		return nil, nil //nolint:nilnil // there is nothing to make an entry of
	}
	return &e, nil
}

// header returns a header of the request, of which the path is one.
func (s *Stream) header(name string) string {
	if name == ":path" {
		return s.Path
	}
	return s.Request.Get(name)
}

// format returns the value of a format that is one command; "-" if there is none, as Envoy writes.
func (s *Stream) format(format string) (string, error) {
	command, argument, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(format, "%"), ")%"), "(")
	text := ""
	switch command {
	case "RESP":
		text = s.Response.Get(argument)
	case "DYNAMIC_METADATA":
		namespace, key, one := strings.Cut(argument, ":")
		if !one {
			return "", fmt.Errorf("cannot play the format %s, which is no number", format)
		}
		if v := s.Value(namespace, key); v != nil {
			text = fmt.Sprint(v.AsInterface())
		}
	default:
		return "", fmt.Errorf("cannot play the format %s", format)
	}
	if text == "" {
		text = "-"
	}
	return text, nil
}

// asHeader returns headers of an answer as Go has them.
func asHeader(to http.Header, from []*corev3.HeaderValue) {
	for _, h := range from {
		to.Set(h.GetKey(), h.GetValue())
	}
}
