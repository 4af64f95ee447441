package recorded

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// record is a line whose values have names.
type record struct {
	where   string         // owner of the columns, for errors
	columns map[string]int // indices into values; nil for JSON
	values  [][]byte
	object  map[string]json.RawMessage
	split   func(r *record, line []byte) error // reads a line into values or object
}

// get returns a value as it is in the line; nil if the line does not have it, or null.
func (r *record) get(name string) []byte {
	if r.columns == nil {
		return member(r.object, name)
	}
	if i, ok := r.columns[name]; ok {
		return r.values[i]
	}
	return nil
}

// needs returns an error if no line has a field.
func (r *record) needs(f *field) error {
	if r.columns == nil || slices.ContainsFunc(f.names, func(name string) bool { _, ok := r.columns[name]; return ok }) {
		return nil
	}
	return fmt.Errorf("the field %s is not in %s, which has %s", strings.Join(f.names, " or "), r.where,
		strings.Join(slices.Sorted(maps.Keys(r.columns)), ", "))
}

func splitJSON(r *record, line []byte) error {
	r.object = nil
	if err := json.Unmarshal(line, &r.object); err != nil {
		return fmt.Errorf("the line is not a JSON object: %w", err)
	}
	return nil
}

// member returns a member of an object as text. If there is no member a.b, it is the member b of the object a.
func member(object map[string]json.RawMessage, name string) []byte {
	raw, ok := object[name]
	if !ok {
		outer, inner, found := strings.Cut(name, ".")
		if !found || len(object[outer]) == 0 || object[outer][0] != '{' {
			return nil
		}
		var nested map[string]json.RawMessage
		_ = json.Unmarshal(object[outer], &nested) // cannot fail: the line was valid
		return member(nested, inner)
	}
	if string(raw) == "null" {
		return nil
	}
	if raw[0] != '"' {
		return raw
	}
	if body := raw[1 : len(raw)-1]; bytes.IndexByte(body, '\\') < 0 {
		return body
	}
	var text string
	_ = json.Unmarshal(raw, &text) // likewise
	return []byte(text)
}

// field is a field of a log as mappings see it.
type field struct {
	names []string       // in the log; the first that a line has is used
	match *regexp.Regexp // selects a part of the value; nil for all of it
}

// raw returns the value in the log; nil if the line does not have it.
func (f *field) raw(r *record) []byte {
	for _, name := range f.names {
		if v := r.get(name); v != nil {
			return v
		}
	}
	return nil
}

// value returns the value; nil if it is missing. With an expression, it is the first group that is not empty.
func (f *field) value(r *record) []byte {
	v := f.raw(r)
	if len(v) == 0 || string(v) == "-" {
		return nil
	}
	if f.match == nil {
		return v
	}
	groups := f.match.FindSubmatch(v)
	if len(groups) > 1 {
		groups = groups[1:]
	}
	for _, g := range groups {
		if len(g) > 0 {
			return g
		}
	}
	return nil
}

// withoutPort matches the address in address:port and [address]:port, and an address.
var withoutPort = regexp.MustCompile(`^(?:\[(.+)\]:\d+|([^:]+):\d+|(.+))$`)

// wellKnown returns a field that has other names in the logs of Envoy, Istio, Envoy Gateway and others.
func wellKnown(name string) *field {
	names, ok := map[string][]string{
		"time":           {"start_time", "time", "timestamp", "@timestamp", "ts", "START_TIME"},
		"duration":       {"duration", "DURATION"},
		"response_flags": {"response_flags", "flags", "RESPONSE_FLAGS"},
		"response_code":  {"response_code", "code", "status", "RESPONSE_CODE"},
		"decided_at":     {"decided_at", "ratelimit.decided_at"},
		"path":           {"path", "x-envoy-origin-path"},
		"remote_address": {"remote_address", "downstream_remote_address", "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_REMOTE_ADDRESS"},
	}[name]
	if !ok {
		names = []string{name}
	}
	f := &field{names: names}
	if name == "remote_address" {
		f.match = withoutPort
	}
	return f
}
