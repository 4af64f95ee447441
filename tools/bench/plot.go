package main

import (
	"bytes"
	"fmt"
	"image/color"
	"regexp"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// style is the appearance of a server in all plots: colours, and dashes and glyphs for readers without colour.
type style struct {
	name   string
	color  color.Color
	dashes []vg.Length
	glyph  draw.GlyphDrawer
}

func styleOf(server string) style {
	switch server {
	case idleServer:
		return style{"idle grpc-go server", color.Gray{0xb8}, []vg.Length{1, 3}, draw.TriangleGlyph{}}
	case ratelimitd:
		return style{"ratelimitd", color.RGBA{0x1f, 0x5f, 0xa8, 0xff}, nil, draw.CircleGlyph{}}
	default:
		return style{"envoyproxy/ratelimit", color.RGBA{0xe8, 0x8b, 0x2e, 0xff}, []vg.Length{6, 3}, draw.BoxGlyph{}}
	}
}

// plots returns the functions that draw the pictures, by file.
func (r results) plots() map[string]func() ([]byte, error) {
	return map[string]func() ([]byte, error){
		"server.svg": func() ([]byte, error) {
			return r.bars("Processor time of the server for a request", cpu, func(row) bool { return true }, idleServer, ratelimitd, peer)
		},
		"redis.svg": func() ([]byte, error) {
			return r.bars("Processor time of Redis for a request", redisCPU, func(x row) bool { return x.store != memory }, ratelimitd, peer)
		},
		"latency.svg": func() ([]byte, error) { return r.latency("Redis, leases off: open loop") },
		"goodput-1.svg": func() ([]byte, error) {
			return r.goodput("overload: Redis, one descriptor", "Goodput, one descriptor, on Redis")
		},
		"goodput-16.svg": func() ([]byte, error) {
			return r.goodput("overload: Redis, 16 descriptors", "Goodput, 16 descriptors, on Redis")
		},
	}
}

// newPlot returns an empty plot.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(4)
	for _, t := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		t.Font.Variant = "Sans"
	}
	return p
}

// narrower is the factor for the size of text, because substitute fonts are wider.
const narrower = 0.88

// render renders a plot as SVG with any sans-serif font.
func render(p *plot.Plot, width, height vg.Length) ([]byte, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	var out bytes.Buffer
	if _, err := c.WriteTo(&out); err != nil {
		return nil, err
	}
	style := regexp.MustCompile(`font-family:[^;]*;([^"]*)font-size:([0-9.]+)px`)
	return style.ReplaceAllFunc(out.Bytes(), func(found []byte) []byte {
		m := style.FindSubmatch(found)
		size, _ := strconv.ParseFloat(string(m[2]), 64) // validated by the expression
		return fmt.Appendf(nil, "font-family:Arial,Helvetica,Liberation Sans,sans-serif;font-size:%.2fpx", narrower*size)
	}), nil
}

// blank returns a picture for rows without measurements.
func blank(title string) ([]byte, error) {
	p := newPlot(title+": not measured", "", "")
	p.HideAxes()
	return render(p, vg.Points(640), vg.Points(60))
}

// bars draws the median of a number for rows of costs.
func (r results) bars(title string, number func(sample) float64, want func(row) bool, servers ...string) ([]byte, error) {
	some := slices.DeleteFunc(rows(), func(x row) bool {
		_, found := r.Rows[x.name]
		return !found || x.part != costs || !want(x)
	})
	if len(some) == 0 {
		return blank(title)
	}
	slices.Reverse(some) // first row at the top
	p := newPlot(title, "µs", "")
	p.X.Min, p.Legend.Left = 0, false
	const thick = 8
	names := make([]string, len(some))
	for i, x := range some {
		names[i] = x.name
	}
	for i, server := range servers {
		values, found := make(plotter.Values, len(some)), false
		for j, x := range some {
			if s := first(r.Rows[x.name].Servers[server]); len(s) > 0 {
				values[j], found = median(numbers(s, number)), true
			}
		}
		if !found {
			continue
		}
		b, err := plotter.NewBarChart(values, vg.Points(thick))
		if err != nil {
			return nil, err
		}
		at := styleOf(server)
		b.Horizontal, b.Color, b.LineStyle.Width = true, at.color, vg.Points(0.5)
		b.Offset = vg.Points(thick * (float64(len(servers)-1)/2 - float64(i)))
		p.Add(b)
		p.Legend.Add(at.name, b)
	}
	p.NominalY(names...)
	p.X.Max *= 1.3 // room for the legend
	return render(p, vg.Points(680), vg.Points(float64(80+len(names)*(len(servers)*thick+10))))
}

// curve is a number for each step of a row, plotted against the offered rate.
type curve struct {
	row, server, suffix string
	faint               bool
	y                   func(sample) float64
}

// add adds a curve to a plot, if it has values: medians, in thousands of requests a second.
func (r results) add(p *plot.Plot, c curve) error {
	rounds := r.Rows[c.row].Servers[c.server]
	if len(rounds) == 0 {
		return nil
	}
	var points plotter.XYs
	for i := range rounds[0] {
		s := nth(rounds, i)
		if x := median(numbers(s, offered)); x > 0 { // excludes the closed loop
			points = append(points, plotter.XY{X: x / 1000, Y: median(numbers(s, c.y))})
		}
	}
	l, g, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	at := styleOf(c.server)
	l.Color, l.Dashes, l.Width = at.color, at.dashes, vg.Points(1.5)
	g.Color, g.Shape, g.Radius = at.color, at.glyph, vg.Points(3)
	if c.faint {
		l.Width, g.Radius = vg.Points(0.7), vg.Points(2)
	}
	p.Add(l, g)
	p.Legend.Add(at.name+c.suffix, l, g)
	return nil
}

// latency plots quantiles against the rate.
func (r results) latency(name string) ([]byte, error) {
	const title = "Latency from when a call was due, with Redis"
	if _, found := r.Rows[name]; !found {
		return blank(title)
	}
	p := newPlot(title, "offered, thousands of requests a second", "ms, logarithmic")
	p.Y.Scale, p.Y.Tick.Marker, p.X.Min = plot.LogScale{}, plot.LogTicks{Prec: -1}, 0
	for _, c := range []curve{
		{"memory: open loop", idleServer, ", p99", false, p99},
		{name, ratelimitd, ", p50", true, p50},
		{name, ratelimitd, ", p99", false, p99},
		{name, peer, ", p50", true, p50},
		{name, peer, ", p99", false, p99},
	} {
		if err := r.add(p, c); err != nil {
			return nil, err
		}
	}
	p.Add(plotter.NewGrid())
	return render(p, vg.Points(640), vg.Points(360))
}

// goodput plots decisions in time against the offered rate.
func (r results) goodput(name, title string) ([]byte, error) {
	if _, found := r.Rows[name]; !found {
		return blank(title)
	}
	p := newPlot(title, "offered, thousands of requests a second", "decided in 20 ms, thousands a second")
	p.Add(plotter.NewGrid())
	p.X.Min, p.Y.Min = 0, 0
	p.Legend.Left, p.Legend.Top = false, true
	for _, server := range []string{ratelimitd, peer} {
		err := r.add(p, curve{name, server, "", false, func(s sample) float64 { return s.Good / 1000 }})
		if err != nil {
			return nil, err
		}
	}
	p.Y.Max *= 1.1
	return render(p, vg.Points(640), vg.Points(320))
}
