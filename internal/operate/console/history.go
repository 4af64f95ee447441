package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// kept is how many samples there are: those of an hour.
const kept = 3600

// Sample counts the requests of one second, by outcome.
type Sample struct {
	Requests, Allowed, Rejected, Errors, Shed float64 // per second

	Other float64 // per second; a control or a fallback decided them
	Slow  float64 // p99 latency in seconds; 0 without requests
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

// chart shows the requests of the last minutes.
type chart struct {
	Since         string // how long ago it begins
	Most, Slowest string // the tops of the two scales
	Says          string // the chart in words
	Latency       figure
	Counts        []figure // requests, allowed and rejected, and others that are not 0
}

// figure is a value over the time of a chart.
type figure struct {
	Title, Class string
	Now          string // over the last seconds
	All          string // over the time of the chart, with its share of the requests
	Line, Area   string // of SVG, in a box of points × chartHeight; empty if it has no curve
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

// draw returns the chart of the latest samples.
func draw(samples []Sample) *chart {
	perPoint, since := spans(len(samples))
	var parts [][]Sample // each a point
	for to := len(samples); to > 0 && len(parts) < points; to -= perPoint {
		parts = append(parts, samples[max(to-perPoint, 0):to])
	}
	slices.Reverse(parts)
	now := samples[max(len(samples)-3, 0):]
	c := &chart{Since: since, Latency: figure{Title: "p99 latency", Class: "plain", Now: latency(slowest(now))}}
	top, requests, curves := 0., 0., make([][]float64, 3)
	for i, k := range []struct {
		title, class string
		value        func(*Sample) float64
	}{
		{"Requests", "plain", func(s *Sample) float64 { return s.Requests }},
		{"Allowed", "good", func(s *Sample) float64 { return s.Allowed }},
		{"Rejected", "bad", func(s *Sample) float64 { return s.Rejected }},
		{"Control or fallback", "plain", func(s *Sample) float64 { return s.Other }},
		{"Errors", "warn", func(s *Sample) float64 { return s.Errors }},
		{"Shed", "warn", func(s *Sample) float64 { return s.Shed }},
	} {
		all := 0.
		for _, part := range parts {
			mean := mean(part, k.value)
			all += mean * float64(len(part))
			if i == 1 || i == 2 {
				curves[i], top = append(curves[i], mean), max(top, mean)
			}
		}
		f := figure{Title: k.title, Class: k.class, Now: count(mean(now, k.value)) + "/s", All: count(math.Round(all))}
		if i == 0 {
			requests = all
			f.All += " in " + since
		} else if requests > 0 {
			f.All += " · " + percent(all, requests)
		}
		if i < len(curves) || all > 0 {
			c.Counts = append(c.Counts, f)
		}
	}
	for i := 1; i < len(curves); i++ {
		c.Counts[i].Line, c.Counts[i].Area = curve(curves[i], top)
	}
	var slow []float64
	for _, part := range parts {
		slow = append(slow, slowest(part))
	}
	worst := slowest(slices.Concat(parts...))
	c.Latency.Line, c.Latency.Area = curve(slow, worst)
	c.Most, c.Slowest, c.Latency.All = count(top)+"/s", latency(worst), "at most "+latency(worst)
	c.Says = fmt.Sprintf("Requests over the last %s, at most %s. Now: allowed %s, rejected %s", since, c.Most, c.Counts[1].Now, c.Counts[2].Now)
	return c
}

// mean returns the mean of a value, and 0 without samples.
func mean(samples []Sample, value func(*Sample) float64) (sum float64) {
	for i := range samples {
		sum += value(&samples[i]) / float64(len(samples))
	}
	return sum
}

// slowest returns the highest p99 latency.
func slowest(samples []Sample) (most float64) {
	for i := range samples {
		most = max(most, samples[i].Slow)
	}
	return most
}

// latency returns a time in seconds as text.
func latency(seconds float64) string {
	if seconds == 0 {
		return "–"
	}
	return short(time.Duration(seconds * float64(time.Second)))
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
