package console

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// kept is the number of samples kept: one hour.
const kept = 3600

// Sample counts the requests of one second, by outcome.
type Sample struct {
	Requests, Allowed, Rejected, Errors, Shed float64 // per second

	Other float64 // per second; a control or a fallback decided them
	Slow  float64 // p99 latency in seconds; 0 without requests
}

// History holds the samples of the last hour. Its zero value is empty.
type History struct {
	mu      sync.Mutex
	samples [kept]Sample
	n       int // samples added so far
}

// Add adds the sample of the latest second.
func (h *History) Add(s Sample) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.samples[h.n%kept] = s
	h.n++
}

// Last returns the samples of the last hour, oldest first.
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

// Dimensions of a chart.
const (
	points      = 100
	chartHeight = 48
)

// chart shows the requests of the last minutes or the last hour.
type chart struct {
	Since        string // its period
	Max, Slowest string // maximums of the two scales
	Label        string // the chart as text
	Latency      figure
	Counts       []figure // requests, allowed, rejected, and further outcomes that occurred
}

// figure is a metric over the period of a chart.
type figure struct {
	Title, Class string
	Now          string // mean of the last 3 samples
	All          string // total of the period, with its share of the requests
	Line, Area   string // SVG points in a box of points × chartHeight; empty without a curve
}

// spans returns the seconds per point and the name of the shortest period that covers all samples.
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

// draw charts the latest samples.
func draw(samples []Sample) *chart {
	perPoint, since := spans(len(samples))
	var parts [][]Sample // one for each point
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
	c.Max, c.Slowest, c.Latency.All = count(top)+"/s", latency(worst), "at most "+latency(worst)
	c.Label = fmt.Sprintf("Requests over the last %s, at most %s. Now: allowed %s, rejected %s", since, c.Max, c.Counts[1].Now, c.Counts[2].Now)
	return c
}

// mean returns the mean of a value; 0 without samples.
func mean(samples []Sample, value func(*Sample) float64) (sum float64) {
	for i := range samples {
		sum += value(&samples[i]) / float64(len(samples))
	}
	return sum
}

// slowest returns the maximum p99 latency.
func slowest(samples []Sample) (most float64) {
	for i := range samples {
		most = max(most, samples[i].Slow)
	}
	return most
}

// latency formats a latency in seconds.
func latency(seconds float64) string {
	if seconds == 0 {
		return "–"
	}
	return short(time.Duration(seconds * float64(time.Second)))
}

// curve returns SVG points of a line through values, the last at the right edge, and of the area below it.
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
