package recorded

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// maxHits is the most hits that Envoy sends from a format.
const maxHits = 1_000_000_000

// Mapping turns the fields of a line into a request.
type Mapping struct {
	domain  []byte
	defined map[string]*field
	rules   []rule
	used    []*field
}

// rule makes one descriptor.
type rule struct {
	descriptor   limiter.Descriptor // its entries have keys only
	values       []value            // of the entries
	hits         *value             // nil if the descriptor has them
	when, unless []condition
	atEnd        bool
}

// value is a template whose fields are resolved.
type value struct {
	template

	from []*field
}

// condition is met if the field is present and matches.
type condition struct {
	field *field
	match *regexp.Regexp // nil matches everything
}

// ParseTemplate parses a mapping in one line: a domain and descriptors, separated by blanks.
func ParseTemplate(text string, parse Parse) (*Mapping, error) {
	words := strings.Fields(text)
	if len(words) < 2 || strings.Contains(words[0], "=") {
		return nil, fmt.Errorf("%q: must be a domain and descriptors, as in 'edge remote_address=%%remote_address%% user=%%user%%'", text)
	}
	m := &Mapping{domain: []byte(words[0])}
	for _, word := range words[1:] {
		if err := m.add(word, parse); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// mappingFile is a mapping in YAML.
type mappingFile struct {
	Domain string
	Fields map[string]struct {
		Of    string
		Match pattern
	}
	Descriptors []struct {
		Descriptor   scalar
		Hits         scalar
		When, Unless map[string]pattern
		AtEnd        bool `yaml:"at_end"`
	}
}

// scalar is a text in YAML.
type scalar struct{ text, place string }

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *scalar) UnmarshalYAML(n *yaml.Node) error {
	s.place = fmt.Sprintf("line %d", n.Line)
	return n.Decode(&s.text)
}

// pattern is a regular expression in YAML.
type pattern struct{ *regexp.Regexp }

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *pattern) UnmarshalYAML(n *yaml.Node) (err error) {
	var text string
	if err = n.Decode(&text); err != nil {
		return err
	}
	if p.Regexp, err = regexp.Compile(text); err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	return nil
}

// unknownKey matches an error of package yaml.
var unknownKey = regexp.MustCompile(`field (\S+) not found in type .*`)

// ParseMapping parses a mapping in YAML. Errors contain the line.
func ParseMapping(data []byte, parse Parse) (*Mapping, error) {
	if err := rulefile.StrayBreak(data); err != nil {
		return nil, err
	}
	var in mappingFile
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
		if wrong := new(yaml.TypeError); errors.As(err, &wrong) {
			text, _, _ := strings.Cut(unknownKey.ReplaceAllString(wrong.Errors[0], "unknown key $1"), " into ")
			err = errors.New(text)
		}
		return nil, fmt.Errorf("%w (docs/replay.md describes mappings)", err)
	}
	if in.Domain == "" || len(in.Descriptors) == 0 {
		return nil, errors.New("must have a domain and descriptors (docs/replay.md describes mappings)")
	}
	m := &Mapping{domain: []byte(in.Domain), defined: map[string]*field{}}
	for name, def := range in.Fields {
		f := wellKnown(cmp.Or(def.Of, name))
		if def.Match.Regexp != nil {
			f.match = def.Match.Regexp
		}
		m.defined[name] = f
	}
	for i, item := range in.Descriptors {
		if err := m.add(item.Descriptor.text, parse); err != nil {
			return nil, fmt.Errorf("%s: %w", cmp.Or(item.Descriptor.place, fmt.Sprintf("item %d of descriptors", i+1)), err)
		}
		r := &m.rules[i]
		r.atEnd, r.when, r.unless = item.AtEnd, m.conditions(item.When), m.conditions(item.Unless)
		if item.Hits.place == "" {
			continue
		}
		hits, err := m.value(item.Hits.text)
		if err != nil {
			return nil, fmt.Errorf("%s: hits: %w", item.Hits.place, err)
		}
		r.hits = &hits
	}
	return m, nil
}

// field returns the field with a name in the mapping, which may be nil.
func (m *Mapping) field(name string) *field {
	if m != nil && m.defined[name] != nil {
		return m.defined[name]
	}
	return wellKnown(name)
}

// add adds a rule without conditions.
func (m *Mapping) add(text string, parse Parse) error {
	d, err := parse(text)
	if err != nil {
		return err
	}
	r := rule{descriptor: d, values: make([]value, len(d.Entries))}
	for i, e := range d.Entries {
		if r.values[i], err = m.value(string(e.Value)); err != nil {
			return err
		}
	}
	m.rules = append(m.rules, r)
	return nil
}

func (m *Mapping) value(text string) (v value, err error) {
	v.template, err = parseTemplate(text)
	for _, name := range v.fields {
		v.from = append(v.from, m.use(name))
	}
	return v, err
}

func (m *Mapping) conditions(in map[string]pattern) (all []condition) {
	for name, p := range in {
		all = append(all, condition{m.use(name), p.Regexp})
	}
	return all
}

// use returns a field that the log must have.
func (m *Mapping) use(name string) *field {
	m.used = append(m.used, m.field(name))
	return m.used[len(m.used)-1]
}

// refunds reports whether the mapping itself refunds hits, which frees slots.
func (m *Mapping) refunds() bool {
	return slices.ContainsFunc(m.rules, func(r rule) bool { return r.descriptor.Negative })
}

// complete adds the request for a line.
func (m *Mapping) complete(e *replay.Event, r *record) error {
	for i := range m.rules {
		d, ok := m.rules[i].apply(r)
		if !ok {
			continue
		}
		q := &e.Request
		if m.rules[i].atEnd {
			q = &e.AtEnd
		}
		if *q == nil {
			*q = &limiter.Request{Domain: m.domain}
		}
		(*q).Descriptors = append((*q).Descriptors, d)
	}
	if e.Request == nil && e.AtEnd != nil {
		*e = replay.Event{At: max(e.At, e.End), Request: e.AtEnd, Silent: true}
	}
	return nil
}

// apply returns the descriptor for a line; ok is false if it is left out.
func (r *rule) apply(from *record) (d limiter.Descriptor, ok bool) {
	for _, c := range r.when {
		if !c.met(from) {
			return d, false
		}
	}
	if slices.ContainsFunc(r.unless, func(c condition) bool { return c.met(from) }) {
		return d, false
	}
	d = r.descriptor
	d.Entries = make([]descriptors.Entry, len(r.values))
	for i := range r.values {
		text, ok := r.values[i].text(from)
		if !ok {
			return d, false
		}
		d.Entries[i] = descriptors.Entry{Key: r.descriptor.Entries[i].Key, Value: text}
	}
	if r.hits != nil {
		text, _ := r.hits.text(from)
		n, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil || n > maxHits {
			return d, false
		}
		d.Hits, d.HasHits = n, true
	}
	return d, true
}

func (c *condition) met(r *record) bool {
	v := c.field.value(r)
	return v != nil && (c.match == nil || c.match.Match(v))
}

// text returns a copy of the text for a line; ok is false if a field is missing.
func (v *value) text(r *record) (text []byte, ok bool) {
	text = bytes.Clone(v.literals[0])
	for i, f := range v.from {
		part := f.value(r)
		if part == nil {
			return nil, false
		}
		text = append(append(text, part...), v.literals[i+1]...)
	}
	return text, true
}
