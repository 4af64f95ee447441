package envoytest

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// accessLog is a json_format: a command for each field. A nil one writes nothing.
type accessLog map[string]string

// accessLogOf reads the access log of a connection manager.
func accessLogOf(m *hcmv3.HttpConnectionManager) (accessLog, error) {
	if len(m.GetAccessLog()) == 0 {
		return nil, nil
	}
	var log streamv3.StdoutAccessLog
	if err := m.GetAccessLog()[0].GetTypedConfig().UnmarshalTo(&log); err != nil {
		return nil, err
	}
	if len(m.GetAccessLog()) > 1 || log.GetLogFormat().GetJsonFormat() == nil {
		return nil, fmt.Errorf("cannot play an access log that is not a single json_format on standard output: %v", m.GetAccessLog())
	}
	fields := accessLog{}
	for name, command := range log.GetLogFormat().GetJsonFormat().GetFields() {
		fields[name] = command.GetStringValue()
		if _, err := (&exchange{stream: &Stream{}}).value(fields[name]); err != nil {
			return nil, fmt.Errorf("the access log's %s: %w", name, err)
		}
	}
	return fields, nil
}

// exchange is a request and what became of it.
type exchange struct {
	stream *Stream
	method string
	status int
	flags  string // of Envoy
	begin  time.Time
}

// line returns the log's line on x.
func (l accessLog) line(x *exchange) (string, error) {
	if l == nil {
		return "", nil
	}
	values := map[string]any{}
	for name, command := range l {
		var err error
		if values[name], err = x.value(command); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(values)
	return string(text) + "\n", err
}

// value returns the value of a command, of its own type; nil if there is none.
func (x *exchange) value(format string) (any, error) { //nolint:ireturn // JSON has values of any type
	command, argument, _ := strings.Cut(strings.TrimSuffix(strings.Trim(format, "%"), ")"), "(")
	switch command {
	case "START_TIME":
		return x.begin.UTC().Format("2006-01-02T15:04:05.000Z"), nil
	case "DURATION":
		return time.Since(x.begin).Milliseconds(), nil
	case "RESPONSE_CODE":
		return x.status, nil
	case "RESPONSE_FLAGS":
		return x.flags, nil
	case "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT":
		return x.stream.Remote, nil
	case "REQ":
		first, other, _ := strings.Cut(argument, "?")
		if text := x.header(first); text != "" || other == "" {
			return orNil(text), nil
		}
		return orNil(x.header(other)), nil
	case "RESP":
		return orNil(x.stream.Response.Get(argument)), nil
	case "DYNAMIC_METADATA":
		if m := x.stream.Metadata[argument]; m != nil {
			return m.AsMap(), nil
		}
		return nil, nil //nolint:nilnil // as the comment says
	}
	return nil, fmt.Errorf("cannot play the format %s", format)
}

// header returns a header of the request, or what HTTP/2 has as one.
func (x *exchange) header(name string) string {
	if name == ":METHOD" {
		return x.method
	}
	return x.stream.header(strings.ToLower(name))
}

func orNil(text string) any { //nolint:ireturn // as above
	if text == "" {
		return nil
	}
	return text
}
