package envoytest

import (
	"encoding/json"
	"fmt"
	"mime"
	"strings"

	contentv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	jsonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	ssev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// usage is a rule by which json_to_metadata or sse_to_metadata takes a number out of an answer.
type usage struct {
	media          string // content type of answers
	path           []string
	namespace, key string
}

// usagesOf reads those of a chain of filters.
func usagesOf(filters []*hcmv3.HttpFilter) (all []usage, err error) {
	for _, f := range filters {
		var some []usage
		switch config := f.GetTypedConfig(); config.GetTypeUrl() {
		case "type.googleapis.com/envoy.extensions.filters.http.sse_to_metadata.v3.SseToMetadata":
			some, err = usagesOfEvents(config)
		case "type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata":
			some, err = usagesOfBody(config)
		case "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
			"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router":
		default:
			err = fmt.Errorf("cannot play the filter %s", f.GetName())
		}
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// usagesOfEvents reads those of a stream of events.
func usagesOfEvents(config *anypb.Any) (all []usage, err error) {
	var sse ssev3.SseToMetadata
	var parser contentv3.JsonContentParser
	if err := config.UnmarshalTo(&sse); err != nil {
		return nil, err
	}
	if err := sse.GetResponseRules().GetContentParser().GetTypedConfig().UnmarshalTo(&parser); err != nil {
		return nil, err
	}
	for _, r := range parser.GetRules() {
		u := usage{media: "text/event-stream", namespace: r.GetRule().GetOnPresent().GetMetadataNamespace(), key: r.GetRule().GetOnPresent().GetKey()}
		for _, s := range r.GetRule().GetSelectors() {
			u.path = append(u.path, s.GetKey())
		}
		all = append(all, u)
	}
	return all, nil
}

// usagesOfBody reads those of an answer of one piece.
func usagesOfBody(config *anypb.Any) (all []usage, err error) {
	var body jsonv3.JsonToMetadata
	if err := config.UnmarshalTo(&body); err != nil {
		return nil, err
	}
	for _, r := range body.GetResponseRules().GetRules() {
		u := usage{media: "application/json", namespace: r.GetOnPresent().GetMetadataNamespace(), key: r.GetOnPresent().GetKey()}
		for _, s := range r.GetSelectors() {
			u.path = append(u.path, s.GetKey())
		}
		all = append(all, u)
	}
	return all, nil
}

// read takes out of the whole body of an answer what the rule asks for. In a stream of events the last that has it counts.
func (u usage) read(s *Stream, body string) {
	media, _, err := mime.ParseMediaType(s.Response.Get("content-type"))
	if err != nil || media != u.media {
		return
	}
	texts := []string{body}
	if media == "text/event-stream" {
		texts = nil
		for line := range strings.Lines(body) {
			if data, is := strings.CutPrefix(line, "data:"); is {
				texts = append(texts, data)
			}
		}
	}
	for _, text := range texts {
		var at any
		if json.Unmarshal([]byte(text), &at) != nil {
			continue // such as [DONE]
		}
		for _, key := range u.path {
			object, _ := at.(map[string]any)
			at = object[key]
		}
		if n, is := at.(float64); is {
			s.set(u.namespace, &structpb.Struct{Fields: map[string]*structpb.Value{u.key: structpb.NewNumberValue(n)}})
		}
	}
}
