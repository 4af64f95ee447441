package envoytest

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// manager returns a connection manager whose access log has a format.
func manager(t *testing.T, format string) *hcmv3.HttpConnectionManager {
	t.Helper()
	log := new(accesslogv3.AccessLog)
	if err := Decode("name: log\ntyped_config:\n  \"@type\": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog\n"+
		"  log_format: "+format, log); err != nil {
		t.Fatal(err)
	}
	return &hcmv3.HttpConnectionManager{AccessLog: []*accesslogv3.AccessLog{log}}
}

func TestAccessLog(t *testing.T) {
	log, err := accessLogOf(manager(t, `{json_format: {code: "%RESPONSE_CODE%", method: "%REQ(:METHOD)%", path: "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",`+
		` user: "%REQ(X-USER)%", tokens: "%RESP(X-TOKENS-USED)%", flags: "%RESPONSE_FLAGS%", rule: "%DYNAMIC_METADATA(ns)%", none: "%DYNAMIC_METADATA(other)%"}}`))
	if err != nil {
		t.Fatal(err)
	}
	line, err := log.line(&exchange{
		stream: &Stream{
			Path: "/a", Request: http.Header{"X-User": {`"a"`}}, Response: http.Header{},
			Metadata: map[string]*structpb.Struct{"ns": {Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(1)}}},
		},
		method: "GET", status: 429, flags: "RL", begin: time.Unix(0, 0),
	})
	if err != nil || !strings.HasSuffix(line, "\n") {
		t.Fatalf("%q: %v", line, err)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(line), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"code": 429., "method": "GET", "path": "/a", "user": `"a"`, "tokens": nil, "flags": "RL", "rule": map[string]any{"n": 1.}, "none": nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAccessLogThatCannotBePlayed(t *testing.T) {
	for _, format := range []string{
		`{text_format_source: {inline_string: "%RESPONSE_CODE%"}}`,
		`{json_format: {bytes: "%BYTES_SENT%"}}`,
	} {
		if _, err := accessLogOf(manager(t, format)); err == nil || !strings.Contains(err.Error(), "cannot play") {
			t.Errorf("%s: %v", format, err)
		}
	}
}
