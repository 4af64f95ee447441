package recorded

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Mapping says how a line of a log becomes a request.
type Mapping struct {
	domain    string
	templates []limiter.Descriptor // with formats as values; nil if there is
	envoy     *envoyConfig
	text      string         // the format of the log's lines; empty if the mapping says none
	json      map[string]any // the same, of lines of JSON
}

// asked is what is asked about a line: a request and the call at its end, both of which there may be none of.
type asked struct {
	request *limiter.Request
	silent  bool // no caller waits for the answer to request
	charge  *replay.Charge
}

// asker makes what is asked about a line of its values. It keeps nothing of them.
type asker func(values [][]byte) (asked, error)

var errTemplate = errors.New("want a domain and descriptors, such as 'edge remote_address=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% user=%REQ(X-USER)%'")

// Template returns a mapping that is written as in other commands: a domain and descriptors, with format strings as values.
func Template(text string, parse func(string) (limiter.Descriptor, error)) (*Mapping, error) {
	words := strings.Fields(text)
	if len(words) < 2 || strings.Contains(words[0], "=") {
		return nil, fmt.Errorf("%q: %w", text, errTemplate)
	}
	m := &Mapping{domain: words[0]}
	for _, word := range words[1:] {
		d, err := parse(word)
		if err != nil {
			return nil, err
		}
		for _, e := range d.Entries {
			if _, err := parseFormat(string(e.Value)); err != nil {
				return nil, fmt.Errorf("%s: %w", word, err)
			}
		}
		m.templates = append(m.templates, d)
	}
	return m, nil
}

// ends reports whether the mapping says itself what is refunded when a request ends.
func (m *Mapping) ends() bool { return m != nil && m.envoy != nil && m.envoy.ends() }

// bind returns what makes requests of lines of a layout.
func (m *Mapping) bind(l layout) (asker, error) {
	if m.envoy != nil {
		return m.envoy.bind(l)
	}
	var makers []func(values [][]byte) (limiter.Descriptor, bool)
	for _, d := range m.templates {
		maker, err := bindTemplate(l, d)
		if err != nil {
			return nil, err
		}
		makers = append(makers, maker)
	}
	domain := []byte(m.domain)
	return func(values [][]byte) (asked, error) {
		r := &limiter.Request{Domain: domain}
		for _, maker := range makers {
			if d, ok := maker(values); ok {
				r.Descriptors = append(r.Descriptors, d)
			}
		}
		if len(r.Descriptors) == 0 {
			return asked{}, nil
		}
		return asked{request: r}, nil
	}, nil
}

// bindTemplate returns what makes the descriptor of a template, unless a value is missing or empty.
func bindTemplate(l layout, d limiter.Descriptor) (func([][]byte) (limiter.Descriptor, bool), error) {
	getters := make([]getter, len(d.Entries))
	for i, e := range d.Entries {
		var err error
		if getters[i], err = substitution(l, string(e.Value), fmt.Sprintf("the entry %s of --map", e.Key)); err != nil {
			return nil, err
		}
	}
	return func(values [][]byte) (limiter.Descriptor, bool) {
		made := d
		made.Entries = make([]descriptors.Entry, len(getters))
		for i, get := range getters {
			value, ok := get(values)
			if !ok || len(value) == 0 {
				return made, false
			}
			made.Entries[i] = descriptors.Entry{Key: d.Entries[i].Key, Value: bytes.Clone(value)}
		}
		return made, true
	}, nil
}
