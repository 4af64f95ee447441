package console

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// kept is how many samples there are: those of an hour.
const kept = 3600

// Sample is what happened in a second. All but Slow are numbers per second.
type Sample struct {
	Requests, Allowed, Rejected, Errors, Shed float64

	Slow float64 // how long the slowest hundredth of the calls took, in seconds
}

// History is what happened in each second of the last hour. Its zero value is empty.
type History struct {
	mu      sync.Mutex
	samples [kept]Sample
	n       int // added so far
}

// Add adds the latest second.
func (h *History) Add(s Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples[h.n%kept] = s
	h.n++
}

// Last returns the samples of the last hour, the latest last.
func (h *History) Last() []Sample {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(h.n, kept)
	all := make([]Sample, 0, n)
	for i := h.n - n; i < h.n; i++ {
		all = append(all, h.samples[i%kept])
	}
	return all
}

// Bounds of a chart.
const (
	points      = 100
	chartHeight = 48
)

// chart is a curve over the last minutes.
type chart struct {
	Title, Now, Most string
	Class            string
	Line, Area       string // of SVG, in a box of points × chartHeight
	Since            string // how long ago it begins
	Says             string // the same in words
}

// spans are what a chart may show: the shortest in which all samples are.
func spans(samples int) (perPoint int, since string) {
	switch {
	case samples <= 3*points:
		return 3, "5 min"
	case samples <= 9*points:
		return 9, "15 min"
	default:
		return kept / points, "1 h"
	}
}

// charts draws the curves of the overview.
func charts(samples []Sample) []chart {
	number := func(v float64) string { return count(v) + "/s" }
	seconds := func(v float64) string {
		if v == 0 {
			return "–"
		}
		return short(time.Duration(v * float64(time.Second)))
	}
	mean := func(values []float64) float64 {
		sum := 0.
		for _, v := range values {
			sum += v
		}
		return sum / float64(len(values))
	}
	var all []chart
	for _, c := range []struct {
		title, class string
		value        func(*Sample) float64
		join         func([]float64) float64
		text         func(float64) string
	}{
		{"Calls", "plain", func(s *Sample) float64 { return s.Requests }, mean, number},
		{"Hits allowed", "good", func(s *Sample) float64 { return s.Allowed }, mean, number},
		{"Requests over a limit", "warn", func(s *Sample) float64 { return s.Rejected }, mean, number},
		{"Errors", "bad", func(s *Sample) float64 { return s.Errors }, mean, number},
		{"99 % of calls took at most", "plain", func(s *Sample) float64 { return s.Slow }, slices.Max[[]float64], seconds},
		{"Shed", "bad", func(s *Sample) float64 { return s.Shed }, mean, number},
	} {
		values := make([]float64, len(samples))
		for i := range samples {
			values[i] = c.value(&samples[i])
		}
		all = append(all, chart{Title: c.title, Class: c.class}.drawn(values, c.join, c.text))
	}
	return all
}

// drawn returns the chart with its curve. Several values become one by join.
func (c chart) drawn(values []float64, join func([]float64) float64, text func(float64) string) chart {
	var perPoint int
	perPoint, c.Since = spans(len(values))
	now, top := 0., 0.
	if n := len(values); n > 0 {
		now = join(values[max(n-3, 0):])
	}
	var drawn []float64 // the last first
	for rest := values; len(rest) > 0 && len(drawn) < points; {
		from := max(len(rest)-perPoint, 0)
		v := join(rest[from:])
		drawn, top, rest = append(drawn, v), max(top, v), rest[:from]
	}
	slices.Reverse(drawn)
	top = max(top, now)
	c.Line, c.Area = curve(drawn, top)
	c.Now, c.Most = text(now), text(top)
	c.Says = fmt.Sprintf("%s over the last %s: now %s, at most %s", c.Title, c.Since, c.Now, c.Most)
	return c
}

// curve returns values, the last at the right edge, and the area below them, as points of SVG.
func curve(values []float64, top float64) (line, area string) {
	if len(values) == 0 {
		return "", ""
	}
	var b strings.Builder
	first := points - len(values) + 1
	for i, v := range values {
		y := float64(chartHeight - 1)
		if top > 0 {
			y -= v / top * (chartHeight - 4)
		}
		fmt.Fprintf(&b, "%d,%.1f ", first+i, y)
	}
	line = strings.TrimSpace(b.String())
	return line, fmt.Sprintf("%d,%d %s %d,%d", first, chartHeight, line, points, chartHeight)
}
