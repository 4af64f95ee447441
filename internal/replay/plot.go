package replay

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed templates
var embedded embed.FS

// Dimensions of a plot in pixels.
const (
	plotWidth   = 960
	plotLeft    = 72
	plotRight   = plotWidth - 24
	firstPanel  = 72
	panelName   = 22
	totalHeight = 170
	ruleHeight  = 72
	panelGap    = 18
	maxTicks    = 8
	tabled      = 50 // rows of a table
)

// plot is the data of the template of a plot.
type plot struct {
	Width, Height, Left, Right int
	LabelX, TimesY, ZoneY      int
	Title, Text, Zone          string

	Legend []legend
	Panels []panel
	X      []tick
}

type legend struct {
	All               bool
	Class, Text       string
	X, LineEnd, TextX int
}

type panel struct {
	Name                   string
	NameY, Bottom, TickEnd int
	Y                      []tick
	All                    string // path of all requests; empty if hidden
	Lines                  []line

	all  []uint64   // values of All
	sets [][]uint64 // values of Lines
}

type tick struct {
	At, TextAt string
	Text       string
}

type line struct{ Class, Path string }

// page is the data of the template of a page.
type page struct {
	Plot   *plot
	Report *Report
	Rules  []Rule
	Values []Value

	MoreRules, MoreValues int // not shown
}

// WriteSVG writes a plot of a report: requests and rejections over time, and those of the rules with the most
// rejections.
func WriteSVG(w io.Writer, r *Report) error { return write(w, "svg", newPlot(r)) }

// WriteHTML writes a self-contained page with the plot and the tables of a report.
func WriteHTML(w io.Writer, r *Report) error {
	return write(w, "html", &page{
		Plot: newPlot(r), Report: r, Rules: r.Rules[:min(len(r.Rules), tabled)], Values: r.Values[:min(len(r.Values), tabled)],
		MoreRules: max(len(r.Rules)-tabled, 0), MoreValues: max(len(r.Values)-tabled, 0) + int(r.LeftOff),
	})
}

func write(w io.Writer, name string, data any) error {
	t, err := template.New("").Funcs(template.FuncMap{
		"percent": func(n, all uint64) string {
			return strconv.FormatFloat(100*float64(n)/float64(max(all, 1)), 'f', 2, 64)
		},
		"most": slices.Max[[]uint64],
		"last": func(all []string) (text string) {
			for _, s := range all {
				if s != "" {
					text = s
				}
			}
			return text
		},
		"earliest": func(all []*time.Time) string { return latest(all, -1) },
		"latest":   func(all []*time.Time) string { return latest(all, 1) },
	}).ParseFS(embedded, "templates/*.html")
	if err != nil {
		return fmt.Errorf("reading the template: %w", err)
	}
	return t.ExecuteTemplate(w, name, data)
}

// latest returns the latest time that is not nil or, with sign -1, the earliest.
func latest(all []*time.Time, sign int) string {
	all = slices.DeleteFunc(slices.Clone(all), func(t *time.Time) bool { return t == nil })
	if len(all) == 0 {
		return ""
	}
	return slices.MaxFunc(all, func(a, b *time.Time) int { return sign * a.Compare(*b) }).Format(time.RFC3339)
}

func newPlot(r *Report) *plot {
	p := &plot{Width: plotWidth, Left: plotLeft, Right: plotRight, LabelX: plotLeft - 8, Title: "Requests and rejections", Text: describe(r)}
	t := &r.Timeline
	p.X, p.Zone = timeTicks(t)
	p.Legend = legends(r)
	at := firstPanel
	at = p.add(panel{Name: "all rules, per second", all: t.Requests, sets: t.Rejected}, at, totalHeight, t)
	for i := range t.Rules {
		at = p.add(panel{Name: t.Rules[i].Path + ", rejected per second", sets: t.Rules[i].Rejected}, at, ruleHeight, t)
	}
	p.TimesY, p.ZoneY = at-panelGap+20, at-panelGap+40
	p.Height = at - panelGap + 52
	return p
}

// describe describes a plot in words.
func describe(r *Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests from %s to %s.", r.Requests, r.From.Format(time.RFC3339), r.To.Format(time.RFC3339))
	for i := range r.Sets {
		s := &r.Sets[i]
		fmt.Fprintf(&b, " %s rejects %d (%.2f%%).", s.Rules, s.Rejected, 100*float64(s.Rejected)/float64(max(r.Requests, 1)))
	}
	return b.String()
}

func legends(r *Report) (all []legend) {
	x := plotLeft
	add := func(l legend) {
		l.X, l.LineEnd, l.TextX = x, x+24, x+30
		x += 30 + 7*len([]rune(l.Text)) + 24
		all = append(all, l)
	}
	add(legend{All: true, Text: "requests"})
	for i := range r.Sets {
		text := "rejected"
		if len(r.Sets) > 1 {
			text = "rejected by " + r.Sets[i].Rules
		}
		add(legend{Class: "set" + strconv.Itoa(i), Text: text})
	}
	return all
}

// add adds a panel at a height, and returns the height of the next one.
func (p *plot) add(out panel, top, height int, t *Timeline) int {
	all, sets := out.all, out.sets
	out.NameY = top + 12
	top += panelName
	out.Bottom, out.TickEnd = top+height, top+height+5
	most := uint64(0)
	for _, s := range append(slices.Clone(sets), all) {
		if len(s) > 0 {
			most = max(most, slices.Max(s))
		}
	}
	seconds := float64(max(t.Seconds, 1))
	highest, steps := nice(float64(most) / seconds)
	y := func(rate float64) float64 { return float64(top+height) - rate/highest*float64(height) }
	for i := range steps + 1 {
		rate := highest * float64(i) / float64(steps)
		out.Y = append(out.Y, tick{At: pixels(y(rate)), TextAt: pixels(y(rate) + 4), Text: strconv.FormatFloat(rate, 'g', 4, 64)})
	}
	if all != nil {
		out.All = steplike(all, len(t.Requests), func(n uint64) float64 { return y(float64(n) / seconds) }) +
			fmt.Sprintf("L%d,%dL%d,%dZ", plotRight, top+height, plotLeft, top+height)
	}
	for i, s := range sets {
		if len(s) > 0 {
			path := steplike(s, len(t.Requests), func(n uint64) float64 { return y(float64(n) / seconds) })
			out.Lines = append(out.Lines, line{Class: "set" + strconv.Itoa(i), Path: path})
		}
	}
	p.Panels = append(p.Panels, out)
	return top + height + panelGap
}

// steplike returns a path of values, each constant for the duration of its bucket.
func steplike(values []uint64, n int, y func(uint64) float64) string {
	var b strings.Builder
	width := float64(plotRight-plotLeft) / float64(max(n, 1))
	for i, v := range values {
		letter := "L"
		if i == 0 {
			letter = "M"
		}
		from := plotLeft + float64(i)*width
		fmt.Fprintf(&b, "%s%s,%sH%s", letter, pixels(from), pixels(y(v)), pixels(from+width))
	}
	return b.String()
}

// nice returns a round number of at least n, and the number of steps of an axis up to it.
func nice(n float64) (highest float64, steps int) {
	if n <= 0 {
		return 1, 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(n)))
	for _, c := range []struct {
		times float64
		steps int
	}{{1, 2}, {2, 2}, {3, 3}, {4, 2}, {5, 5}, {6, 3}, {8, 4}, {10, 2}} {
		if n <= c.times*unit*(1+1e-9) {
			return c.times * unit, c.steps
		}
	}
	return 10 * unit, 2
}

// timeTicks returns the ticks of the time axis and its label.
func timeTicks(t *Timeline) (ticks []tick, zone string) {
	length := time.Duration(max(len(t.Requests), 1)) * time.Duration(t.Seconds) * time.Second
	const day = 24 * time.Hour
	step := day
	for _, s := range []time.Duration{
		time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
		time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute,
		time.Hour, 2 * time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour, day, 2 * day, 7 * day, 14 * day, 30 * day, 90 * day, 365 * day,
	} {
		if step = s; length/s <= maxTicks {
			break
		}
	}
	for length/step > maxTicks {
		step *= 10
	}
	layout := "15:04"
	switch {
	case step < time.Minute:
		layout = time.TimeOnly
	case step >= day:
		layout = time.DateOnly
	}
	first := t.Start.Truncate(step)
	if first.Before(t.Start) {
		first = first.Add(step)
	}
	for at := first; !at.After(t.Start.Add(length)); at = at.Add(step) {
		x := plotLeft + float64(at.Sub(t.Start))/float64(max(length, 1))*float64(plotRight-plotLeft)
		ticks = append(ticks, tick{At: pixels(x), Text: at.Format(layout)})
	}
	return ticks, "UTC, " + t.Start.Format(time.DateOnly)
}

func pixels(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }
