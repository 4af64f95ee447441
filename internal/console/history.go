package console

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// kept is how many samples there are: those of an hour.
const kept = 3600

// Sample is what happened in a second. All but Slow are numbers per second.
type Sample struct {
	Requests, Allowed, Refused, Errors, Shed float64

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
	points      = 120 // each of them is half a minute
	chartHeight = 48
	perPoint    = kept / points
)

// chart is a curve over the last hour.
type chart struct {
	Title, Now, Most string
	Class            string
	Line, Area       string // of SVG, in a box of points × chartHeight
	Says             string // the same in words
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
	average := func(a, b float64) float64 { return a + b/perPoint }
	most := func(a, b float64) float64 { return max(a, b) }
	var all []chart
	for _, c := range []struct {
		title, class string
		value        func(*Sample) float64
		join         func(a, b float64) float64
		text         func(float64) string
	}{
		{"Requests", "plain", func(s *Sample) float64 { return s.Requests }, average, number},
		{"Allowed", "good", func(s *Sample) float64 { return s.Allowed }, average, number},
		{"Refused", "warn", func(s *Sample) float64 { return s.Refused }, average, number},
		{"Errors", "bad", func(s *Sample) float64 { return s.Errors }, average, number},
		{"Latency, 99th percentile", "plain", func(s *Sample) float64 { return s.Slow }, most, seconds},
		{"Shed", "bad", func(s *Sample) float64 { return s.Shed }, average, number},
	} {
		values := make([]float64, points)
		now, top := 0., 0.
		for i := range samples {
			v := c.value(&samples[len(samples)-1-i])
			at := &values[points-1-i/perPoint]
			*at = c.join(*at, v)
			if i < 5 {
				now = max(now, v)
			}
		}
		if n := len(samples); n < perPoint && n > 0 && c.class != "" && c.title[0] != 'L' { // less than a point's time has passed
			values[points-1] *= perPoint / float64(n)
		}
		for _, v := range values {
			top = max(top, v)
		}
		line, area := curve(values, top, min(points, (len(samples)+perPoint-1)/perPoint))
		all = append(all, chart{
			Title: c.title, Class: c.class, Now: c.text(now), Most: c.text(top), Line: line, Area: area,
			Says: fmt.Sprintf("%s over the last hour: now %s, at most %s", c.title, c.text(now), c.text(top)),
		})
	}
	return all
}

// curve returns the points of the last n values, and of the area below them, in SVG.
func curve(values []float64, top float64, n int) (line, area string) {
	if n == 0 {
		return "", ""
	}
	var b strings.Builder
	for i := len(values) - n; i < len(values); i++ {
		y := float64(chartHeight - 1)
		if top > 0 {
			y -= values[i] / top * (chartHeight - 4)
		}
		fmt.Fprintf(&b, "%d,%.1f ", i+1, y)
	}
	line = strings.TrimSpace(b.String())
	return line, fmt.Sprintf("%d,%d %s %d,%d", len(values)-n+1, chartHeight, line, len(values), chartHeight)
}
