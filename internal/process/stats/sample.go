package stats

import (
	"cmp"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Label is a name and a value that distinguish series of one metric. Statsd calls it a tag.
type Label struct{ Name, Value string }

// Kind is the type of a metric.
type Kind string

// The kinds, in the order of samples.
const (
	Count  Kind = "counter"
	Gauge  Kind = "gauge"
	Timing Kind = "histogram"
)

// Sample is the value of a series at one time.
type Sample struct {
	N     uint64  // of a Count, the sum or, from a Reader, the increase; of a Timing from a Reader, the number of such calls
	Value float64 // of a Gauge; of a Timing from a Reader, in milliseconds

	row       *Row
	part      string         // variable part of the statsd name
	values    []string       // of the labels
	id        any            // identifies the series
	histogram *dto.Histogram // of a Timing
}

// Kind returns the type of the metric.
func (s *Sample) Kind() Kind { return s.row.Type }

// Name returns the name in statsd form, without tags. It may contain characters that are not allowed in a line.
func (s *Sample) Name() string {
	if !s.row.varies() {
		return s.row.Statsd
	}
	before, rest, _ := strings.Cut(s.row.Statsd, "<")
	_, after, _ := strings.Cut(rest, ">")
	return before + s.part + after
}

// Tags returns the tags in statsd form, sorted by name. There are none if the name varies.
func (s *Sample) Tags() []Label {
	if s.row.varies() {
		return nil
	}
	return s.labels()
}

// TagName returns the name in statsd form with tags and others inserted as in the reference: name.__tag=value, sorted by name. Tags
// take precedence over others of the same name. Tags without a name or value are omitted.
func (s *Sample) TagName(others []Label) string {
	tags := s.Tags()
	for _, o := range others {
		if !slices.ContainsFunc(tags, func(t Label) bool { return t.Name == o.Name }) {
			tags = append(tags, o)
		}
	}
	SortLabels(tags)
	var b strings.Builder
	b.WriteString(s.Name())
	for _, t := range tags {
		if t.Name != "" && t.Value != "" {
			b.WriteString(".__" + t.Name + "=" + TagValue(t.Value))
		}
	}
	return b.String()
}

// shownAs returns the name in Prometheus.
func (s *Sample) shownAs() string {
	if strings.Contains(s.row.Name, "<") {
		return metricName(s.Name())
	}
	return s.row.Name
}

// labels returns the labels in Prometheus.
func (s *Sample) labels() []Label {
	var all []Label
	for i, name := range s.row.Labels {
		all = append(all, Label{name, s.values[i]})
	}
	return all
}

// SortLabels sorts labels by name.
func SortLabels(all []Label) {
	slices.SortStableFunc(all, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
}

// TagValue converts s to a value of a statsd tag: dots, colons, and bars become underscores, as in the reference.
func TagValue(s string) string { return count.Underscores(valid(s), ".:|") }

// OneLine replaces characters that break lines or control terminals with underscores: control characters, line separators, and
// characters that change the direction of text.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' || unicode.Is(unicode.Bidi_Control, c) {
			return '_'
		}
		return c
	}, s)
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// metricName converts a statsd name to a Prometheus name: characters that are not allowed become underscores.
func metricName(s string) string {
	b := make([]byte, 0, len(s))
	for i, c := range s {
		letter := c < utf8.RuneSelf && (unicode.IsLetter(c) || c == '_')
		if digit := '0' <= c && c <= '9'; !letter && (!digit || i == 0) {
			c = '_'
		}
		b = append(b, byte(c)) //nolint:gosec // ASCII
	}
	return string(b)
}

// WriteText writes counters and gauges as lines "name: value", sorted by statsd name. Counters of rules appear with
// their first count.
func (r *Registry) WriteText(w io.Writer) error {
	lines := make(map[string]Sample)
	for s := range r.samples {
		if s.Kind() != Timing {
			name := OneLine(s.TagName(nil))
			s.N += lines[name].N
			lines[name] = s
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		s := lines[name]
		value := strconv.FormatUint(s.N, 10)
		if s.Kind() == Gauge {
			value = strconv.FormatFloat(s.Value, 'f', -1, 64)
		}
		b.WriteString(name + ": " + value + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
