package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

var picture = flag.String("picture", "", "draw panels of the dashboard into this file, such as ../../docs/grafana.svg, in two and a half minutes")

// drawn are the panels in the picture, with the factor and the unit of their axis.
var drawn = []struct {
	title, unit string
	factor      float64
}{
	{"Requests by server", "requests/s", 1},
	{"Time to answer", "ms", 1e3},
	{"Rules that reject most", "requests/s", 1},
	{"Round trips to the store", "ms", 1e3},
	{"Decided by on_failure", "hits/s", 1},
	{"Memory by server", "MiB", 1.0 / (1 << 20)},
}

// TestDashboardPicture draws what Prometheus answers to the queries of the dashboard, over a server whose load rises from the 40th to the
// 80th second, and whose Redis hangs for ten seconds after the 110th. Without -picture it checks the picture that is there.
func TestDashboardPicture(t *testing.T) {
	t.Parallel()
	if *picture == "" {
		text, err := os.ReadFile(repository + "/docs/grafana.svg")
		testkit.Check(t, err)
		for _, d := range drawn {
			if !strings.Contains(string(text), ">"+d.title+"<") {
				t.Errorf("docs/grafana.svg lacks the panel %q; draw it again with go test ./cmd/ratelimitd -run Picture -picture ../../docs/grafana.svg", d.title)
			}
		}
		return
	}
	s := openStage(t)
	p := startPrometheus(t, s.shop)
	p.scraped(12) // rates need some
	begin := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	workers := func(ctx context.Context, n int) {
		for i := range n {
			load.Go(func() { s.load(ctx, i) })
		}
	}
	workers(ctx, 2)
	at := func(second int) { time.Sleep(time.Until(begin.Add(time.Duration(second) * time.Second))) }
	at(40)
	surge, over := context.WithCancel(ctx)
	workers(surge, 6)
	at(80)
	over()
	at(110)
	s.db.Stop()
	at(120)
	s.db.Cont()
	at(150)
	stop()
	end := time.Now()
	load.Wait()
	queries := dashboardQueries(t, "", map[string]string{"namespace": ".*", "job": "ratelimitd", "instance": ".*", "domain": ".*", "rule": ".*"})
	var panels []panelDrawn
	for _, d := range drawn {
		panel := panelDrawn{title: d.title, unit: d.unit}
		for _, q := range queries {
			if q.of == d.title {
				panel.lines = append(panel.lines, p.lines(q, begin, end, d.factor)...)
			}
		}
		if len(panel.lines) == 0 {
			t.Errorf("%q finds nothing", d.title)
		}
		slices.SortStableFunc(panel.lines, func(a, b line) int { return strings.Compare(a.name, b.name) })
		panels = append(panels, panel)
	}
	testkit.Check(t, os.WriteFile(*picture, []byte(drawPanels(panels, end.Sub(begin).Seconds())), 0o644))
}

// line is a series, by seconds since the beginning.
type line struct {
	name   string
	points [][2]float64
}

type panelDrawn struct {
	title, unit string
	lines       []line
}

// lines asks Prometheus for a query of the dashboard, and names the series as its legend does. Servers are replica-1 and so on.
func (p *prometheus) lines(q asking, begin, end time.Time, factor float64) (all []line) {
	p.t.Helper()
	status, body, err := testkit.Fetch(p.t.Context(), http.MethodGet, fmt.Sprintf("http://%s/api/v1/query_range?step=2&start=%d&end=%d&query=%s",
		p.Addr(), begin.Unix(), end.Unix(), url.QueryEscape(q.expr)), "")
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &answer)
	}
	if err != nil || status != http.StatusOK {
		p.t.Fatalf("%s: %d, %v\n%s", q.expr, status, err, body)
	}
	servers := map[string]string{}
	for _, r := range answer.Data.Result {
		if at := r.Metric["instance"]; at != "" && servers[at] == "" {
			servers[at] = "replica-" + strconv.Itoa(len(servers)+1)
		}
		l := line{name: strings.TrimSpace(regexp.MustCompile(`\{\{(\w+)\}\}`).ReplaceAllStringFunc(q.name, func(label string) string {
			value := r.Metric[strings.Trim(label, "{}")]
			return cmp.Or(servers[value], value)
		}))}
		most := 0.0
		for _, v := range r.Values {
			y, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
			if x, ok := v[0].(float64); ok && err == nil && y == y { // not NaN
				l.points = append(l.points, [2]float64{x - float64(begin.Unix()), y * factor})
				most = max(most, y)
			}
		}
		if most > 0 {
			all = append(all, l)
		}
	}
	return all
}

// drawPanels draws panels in two columns, as SVG.
func drawPanels(panels []panelDrawn, seconds float64) string {
	const width, height, left, top, w, h = 480, 250, 52, 48, 412, 150
	colors := []string{"#1f5fa8", "#c4601d", "#2e7d32", "#8e24aa", "#6d4c41", "#00838f"}
	dashes := []string{"", "6 3", "2 2", "8 3 2 3", "4 4", "1 3"}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", 2*width, height*((len(panels)+1)/2))
	fmt.Fprintln(&b, `<rect width="100%" height="100%" fill="#fff"/>`)
	for i, p := range panels {
		most := 0.0
		for _, l := range p.lines {
			for _, v := range l.points {
				most = max(most, v[1])
			}
		}
		most = roundUp(most)
		fmt.Fprintf(&b, `<g transform="translate(%d %d)"><text x="8" y="18" font-size="13" font-weight="bold">%s</text><text x="8" y="34" fill="#555">%s</text>`+"\n",
			i%2*width, i/2*height, html.EscapeString(p.title), html.EscapeString(p.unit))
		for tick := range 5 {
			y := top + h - h*tick/4
			fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left, y, w, left-4, y+4,
				strconv.FormatFloat(most*float64(tick)/4, 'g', 4, 64))
		}
		for s := 0; s <= int(seconds); s += 30 {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%d s</text>`+"\n", left+int(float64(s)/seconds*w), top+h+15, s)
		}
		x := left
		for j, l := range p.lines {
			var path strings.Builder
			for k, v := range l.points {
				letter := "L"
				if k == 0 || v[0]-l.points[k-1][0] > 3 {
					letter = "M"
				}
				fmt.Fprintf(&path, "%s%.0f %.1f", letter, left+v[0]/seconds*w, top+h-v[1]/most*h)
			}
			color, dash := colors[j%len(colors)], dashes[j%len(dashes)]
			fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="1.5" stroke-dasharray="%s"/>`+"\n", path.String(), color, dash)
			fmt.Fprintf(&b, `<path d="M%d %dh18" stroke="%s" stroke-width="2" stroke-dasharray="%s"/><text x="%d" y="%d">%s</text>`+"\n",
				x, top+h+28, color, dash, x+22, top+h+32, html.EscapeString(l.name))
			x += 36 + 6*len(l.name)
		}
		fmt.Fprintln(&b, "</g>")
	}
	return b.String() + "</svg>\n"
}

// roundUp returns the next larger 1, 2, 4 or 8 times a power of ten.
func roundUp(n float64) float64 {
	for step := 1e-6; ; step *= 10 {
		for _, k := range []float64{1, 2, 4, 8} {
			if k*step >= n {
				return k * step
			}
		}
	}
}
