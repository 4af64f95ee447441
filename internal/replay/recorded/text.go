package recorded

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// template is a text with fields.
type template struct {
	literals [][]byte // before each field, and at the end
	fields   []string
}

// parseTemplate parses a text in which %name% is a field, and %% a percent sign.
func parseTemplate(text string) (t template, err error) {
	if len(text) > maxFormat {
		return t, fmt.Errorf("%d bytes exceed the maximum of %d", len(text), maxFormat)
	}
	parts := strings.Split(text, "%")
	if len(parts)%2 == 0 {
		return t, fmt.Errorf("%q: write a field between two percent signs, as in %%user%%, and a percent sign as %%%%", text)
	}
	t.literals = [][]byte{nil}
	for i, part := range parts {
		if i%2 == 1 && part != "" {
			t.fields, t.literals = append(t.fields, part), append(t.literals, nil)
			continue
		}
		if i%2 == 1 {
			part = "%"
		}
		last := &t.literals[len(t.fields)]
		*last = append(*last, part...)
	}
	return t, nil
}

// envoyFormat and istioFormat are the default text formats of Envoy and Istio, with the names of Istio's JSON.
const (
	envoyFormat = `[%start_time%] "%method% %path% %protocol%" %response_code% %response_flags% %bytes_received% %bytes_sent% %duration% ` +
		`%upstream_service_time% "%x_forwarded_for%" "%user_agent%" "%request_id%" "%authority%" "%upstream_host%"`
	istioFormat = `[%start_time%] "%method% %path% %protocol%" %response_code% %response_flags% %response_code_details% ` +
		`%connection_termination_details% "%upstream_transport_failure_reason%" %bytes_received% %bytes_sent% %duration% ` +
		`%upstream_service_time% "%x_forwarded_for%" "%user_agent%" "%request_id%" "%authority%" "%upstream_host%" %upstream_cluster% ` +
		`%upstream_local_address% %downstream_local_address% %downstream_remote_address% %requested_server_name% %route_name%`
)

const formatNames = "nginx, apache, combined or common"

// formatsOf returns the formats with a name, or else the format itself.
func formatsOf(name string) []string {
	const (
		common    = `%remote_address% %ident% %user% [%time%] "%method% %path% %protocol%" %response_code% %bytes_sent%`
		combined  = common + ` "%referer%" "%user_agent%"`
		forwarded = combined + ` "%x_forwarded_for%"` // that of nginx.org's packages
	)
	formats := map[string][]string{"nginx": {forwarded, combined}, "apache": {combined, common}, "combined": {combined}, "common": {common}}[name]
	if formats == nil {
		formats = []string{name}
	}
	return formats
}

var errNotFormat = errors.New("the line is not in the format of the log")

// parseFormat parses a template for the lines of a log.
func parseFormat(text string) (t template, err error) {
	if t, err = parseTemplate(strings.TrimRight(text, "\r\n")); err != nil {
		return t, err
	}
	if len(t.fields) == 0 {
		return t, fmt.Errorf("%q: a format must have fields, such as %%time%%, or be "+formatNames, text)
	}
	for i, name := range t.fields[1:] {
		if len(t.literals[i+1]) == 0 {
			return t, fmt.Errorf("%%%s%%%%%s%%: fields need text between them, to show where the first one ends", t.fields[i], name)
		}
	}
	return t, nil
}

// columns returns the indices of the fields.
func (t *template) columns() map[string]int {
	all := map[string]int{}
	for i, name := range t.fields {
		all[name] = i
	}
	return all
}

// split reads the fields of a line. A field ends where the literal after it first occurs, the last one at the end.
func (t *template) split(r *record, line []byte) error {
	last := len(t.fields)
	line, begins := bytes.CutPrefix(line, t.literals[0])
	line, ends := bytes.CutSuffix(line, t.literals[last])
	fits := begins && ends
	r.values = r.values[:0]
	for _, next := range t.literals[1:last] {
		value, rest, found := bytes.Cut(line, next)
		r.values, line, fits = append(r.values, value), rest, fits && found
	}
	if !fits {
		return errNotFormat
	}
	r.values = append(r.values, line)
	return nil
}
