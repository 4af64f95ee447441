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

// Label is a name and a value that distinguish series of the same name. Statsd calls it a tag.
type Label struct{ Name, Value string }

// Kind is the type of a metric.
type Kind string

// The kinds, in the order in which samples come.
const (
	Count  Kind = "counter"
	Gauge  Kind = "gauge"
	Timing Kind = "histogram"
)

// Sample is the value of a series at one time.
type Sample struct {
	N     uint64  // of a Count, the sum or, from a Reader, the increase; of a Timing of a Reader, how many calls took about this long
	Value float64 // of a Gauge; of a Timing of a Reader, in milliseconds

	row       *Row
	part      string         // what varies in its name in statsd form
	values    []string       // of its labels
	id        any            // identifies the series
	histogram *dto.Histogram // of a Timing
}

// Kind returns the type of the metric.
func (s *Sample) Kind() Kind { return s.row.Type }

// Name returns the name in statsd form, without tags. It may contain what is not allowed in a line.
func (s *Sample) Name() string {
	if !s.row.varies() {
		return s.row.Statsd
	}
	before, rest, _ := strings.Cut(s.row.Statsd, "<")
	_, after, _ := strings.Cut(rest, ">")
	return before + s.part + after
}

// Tags returns the tags of the name in statsd form, sorted by name. There are none if the name varies.
func (s *Sample) Tags() []Label {
	if s.row.varies() {
		return nil
	}
	return s.labels()
}

// TagName returns the name in statsd form with the tags and others written into it as the reference does: name.__tag=value, sorted by
// name. A tag replaces another of the same name. Those without a name or a value are omitted.
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

// TagValue turns s into the value of a statsd tag: dots, colons and bars become underscores, as in the reference.
func TagValue(s string) string { return count.Underscores(valid(s), ".:|") }

// OneLine replaces by underscores what ends a line or controls a terminal: control characters, line separators and those that turn
// the direction of text.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || c == '\u2028' || c == '\u2029' || unicode.Is(unicode.Bidi_Control, c) {
			return '_'
		}
		return c
	}, s)
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// metricName turns a statsd name into a Prometheus name: characters that are not allowed there become underscores.
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

// WriteText writes the counters and gauges for people, one per line, as "name: value", sorted by their statsd names.
// Counters of rules appear with their first count.
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
