package recorded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// jsonField is a field of a line of JSON that is asked for.
type jsonField struct {
	path   []string
	format *textFormat // what stands in it; nil if it is a value as a whole
	index  int         // into format
}

// jsonLayout is a log of lines of JSON. Only the fields that were asked for are read.
type jsonLayout struct {
	named  []namedField // by the format of the log
	usual  bool         // there is none: fields have the names that are usual
	first  object       // the first line, if usual
	fields []jsonField
}

// namedField says what stands in a field.
type namedField struct {
	path   []string
	format *textFormat
}

// usualFields are the names that fields have by default in Istio and Envoy Gateway, and are often given elsewhere.
func usualFields() map[operator][]string {
	req := func(name string) operator { return operator{name: opRequest, arg: name} }
	return map[operator][]string{
		{name: opStart}:        {"start_time", "time", "timestamp", "@timestamp", "ts"},
		{name: opDuration}:     {"duration"},
		{name: opFlags}:        {"response_flags"},
		{name: opCode}:         {"response_code", "status"},
		{name: opAddressPort}:  {"downstream_remote_address", "remote_address"},
		{name: opCluster}:      {"upstream_cluster"},
		req(headerPath):        {"path", "x-envoy-origin-path"},
		req(":method"):         {"method"},
		req(headerHost):        {"authority", ":authority", "host"},
		req("user-agent"):      {"user_agent", "user-agent"},
		req("x-forwarded-for"): {"x_forwarded_for", "x-forwarded-for"},
		req("x-request-id"):    {"request_id", "x-request-id"},
	}
}

// newJSONLayout returns the layout of lines that were written in a json_format, or of the usual fields if that is nil. first is
// one of the lines.
func newJSONLayout(format map[string]any, first []byte) (*jsonLayout, error) {
	l := &jsonLayout{usual: format == nil}
	if l.usual {
		if err := json.Unmarshal(first, &l.first); err != nil {
			return nil, errStranger
		}
	}
	if err := l.name(nil, format); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *jsonLayout) name(path []string, format map[string]any) error {
	for _, key := range sortedKeys(format) {
		here := append(slices.Clone(path), key)
		switch v := format[key].(type) {
		case map[string]any:
			if err := l.name(here, v); err != nil {
				return err
			}
		case string:
			if !strings.Contains(v, "%") {
				continue
			}
			f, err := newTextFormat(v)
			if err != nil {
				return fmt.Errorf("field %s: %w", strings.Join(here, "."), err)
			}
			l.named = append(l.named, namedField{here, f})
		}
	}
	return nil
}

func (l *jsonLayout) find(want operator) (int, bool) {
	for _, n := range l.named {
		for i, o := range n.format.ops {
			if o.gives(want) {
				return l.add(jsonField{n.path, n.format, i}), true
			}
			if name, key, ok := strings.Cut(want.arg, ":"); ok && o.gives(operator{name: want.name, arg: name}) { // all of a namespace
				return l.add(jsonField{path: append(slices.Clone(n.path), key)}), true
			}
		}
	}
	if l.usual {
		names := usualFields()[want]
		if want.name == opFlags || want.name == opCode { // whether there are any says how rejections are told
			names = slices.DeleteFunc(names, func(name string) bool { return l.first[name] == nil })
		}
		if len(names) > 0 {
			return l.addAny(names), true
		}
	}
	if want.arg == "" && want.name != strings.ToUpper(want.name) { // not an operator
		return l.add(jsonField{path: strings.Split(want.name, ".")}), true
	}
	return 0, false
}

func (l *jsonLayout) add(f jsonField) int {
	l.fields = append(l.fields, f)
	return len(l.fields) - 1
}

// addAny adds a field of which several names are usual.
func (l *jsonLayout) addAny(names []string) int {
	return l.add(jsonField{path: []string{strings.Join(names, "|")}})
}

func (l *jsonLayout) clock(i int) (clockFormat, error) {
	if f := l.fields[i]; f.format != nil {
		return clockOf(f.format.ops[f.index])
	}
	return nil, nil
}

func (*jsonLayout) what() string { return "the JSON of the log" }

// split appends the values of the fields that were asked for.
func (l *jsonLayout) split(line []byte, values [][]byte) ([][]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return values, fmt.Errorf("the line is not an object of JSON: %w", err)
	}
	var parts [][]byte
	for i := range l.fields {
		f := &l.fields[i]
		value, err := dig(object, f.path)
		if err != nil {
			return values, err
		}
		if f.format != nil && len(f.format.ops) > 1 || f.format != nil && value != nil && len(f.format.literals[0])+len(f.format.literals[1]) > 0 {
			if value != nil {
				if parts, err = f.format.split(value, parts[:0]); err != nil {
					return values, fmt.Errorf("field %s: %w", strings.Join(f.path, "."), err)
				}
				value = parts[f.index]
			}
		}
		if string(value) == "-" {
			value = nil
		}
		values = append(values, value)
	}
	return values, nil
}

// dig returns the value of a field, as text; nil if there is none. A part of the path may be several names with | between them,
// of which the first that there is counts.
func dig(object map[string]json.RawMessage, path []string) ([]byte, error) {
	for i, names := range path {
		raw, found := object[names]
		for name := range strings.SplitSeq(names, "|") {
			if found {
				break
			}
			raw, found = object[name]
		}
		switch {
		case !found || string(raw) == "null":
			return nil, nil
		case i == len(path)-1:
			return scalar(raw)
		case raw[0] != '{':
			return nil, nil
		}
		object = nil
		if err := json.Unmarshal(raw, &object); err != nil {
			return nil, fmt.Errorf("field %s: %w", names, err)
		}
	}
	return nil, nil
}

// scalar returns a value of JSON as the text that Envoy would send for it.
func scalar(raw json.RawMessage) ([]byte, error) {
	if raw[0] != '"' {
		return raw, nil
	}
	if body := raw[1 : len(raw)-1]; bytes.IndexByte(body, '\\') < 0 {
		return body, nil
	}
	var text string
	if err := json.Unmarshal(raw, &text); err != nil {
		return nil, fmt.Errorf("a text of JSON: %w", err)
	}
	return []byte(text), nil
}
