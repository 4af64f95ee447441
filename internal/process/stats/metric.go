package stats

import (
	"fmt"
	"strconv"
	"strings"
)

// Metric is a metric of this server, an extension or the reference's. Each has a row in table.go, and a registry counts and shows
// nothing else. Its name, its labels and its help are in its row.
type Metric uint8

// Row describes a metric.
type Row struct {
	metric Metric
	Type   string   // counter, gauge or histogram
	Statsd string   // its name in statsd form, or empty if it is only for Prometheus. What is in angle brackets varies
	Name   string   // its name in Prometheus
	Labels []string // their names, sorted; in statsd they are tags, unless they are in the name
	Help   string   // what it counts or measures, and in which unit
}

// Section is a part of the table.
type Section struct {
	Title string
	Text  string // when its metrics are there
	Rows  []Row
}

// LabelText says what the values of a label are.
type LabelText struct{ Name, Text string }

func counter(m Metric, name, help string, labels ...string) Row {
	return Row{m, "counter", name, metricName(name), labels, help}
}

func gauge(m Metric, name, help string, labels ...string) Row {
	return Row{m, "gauge", name, metricName(name), labels, help}
}

// histogram takes a name in Prometheus. Statsd is sent none, but timings.
func histogram(m Metric, name, help string, labels ...string) Row {
	return Row{m, "histogram", "", name, labels, help}
}

// timings returns r, of which statsd is sent timings, in milliseconds, under a name of their own.
func (r Row) timings(name string) Row {
	r.Statsd = name
	return r
}

// as returns r with a name in Prometheus that is not made of the one in statsd form.
func (r Row) as(name string) Row {
	r.Name = name
	return r
}

// named returns the name in statsd form, with a value for what varies in it.
func (r *Row) named(value string) string {
	before, rest, _ := strings.Cut(r.Statsd, "<")
	_, after, _ := strings.Cut(rest, ">")
	return before + value + after
}

// rows returns the table by metric.
func rows() *[metricCount]Row {
	all := new([metricCount]Row)
	for _, s := range Table() {
		for _, r := range s.Rows {
			all[r.metric] = r
		}
	}
	return all
}

// series is a metric with the values of its labels.
type series[T any] struct {
	row    *Row
	name   string  // in statsd form
	tags   []Label // in statsd form
	labels []Label // for Prometheus
	id     string  // unique
	value  T
}

// newSeries gives r's labels their values, in the order of the row. If the name in statsd form varies, the first value is
// in it, and there are no tags.
func newSeries[T any](r *Row, values []string, value T) *series[T] {
	want, varies := len(r.Labels), strings.Contains(r.Statsd, "<")
	if varies {
		want = max(want, 1)
	}
	if len(values) != want {
		panic(fmt.Sprintf("stats: %s has the labels %q, and is given the values %q", r.Name, r.Labels, values)) //nolint:forbidigo // the caller has a bug
	}
	s := &series[T]{row: r, name: r.Statsd, value: value}
	for i, name := range r.Labels {
		s.labels = append(s.labels, Label{name, values[i]})
	}
	if varies {
		s.name = r.named(values[0])
	} else {
		s.tags = s.labels
	}
	s.id = s.name
	for _, l := range s.tags {
		s.id += strconv.Quote(l.Name) + strconv.Quote(l.Value)
	}
	return s
}

// reread returns s with another value.
func reread[T, V any](s *series[T], value V) *series[V] {
	return &series[V]{s.row, s.name, s.tags, s.labels, s.id, value}
}

// shownAs returns the name in Prometheus.
func (s *series[T]) shownAs() string {
	if strings.Contains(s.row.Name, "<") {
		return metricName(s.name)
	}
	return s.row.Name
}
