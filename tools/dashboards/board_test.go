package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestWritten: the files are what make dashboards writes.
func TestWritten(t *testing.T) {
	files, err := outputs(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what make dashboards writes, %v", path, err)
		}
	}
}

// written returns the dashboard as it was written, decoded by the SDK, which knows every field that Grafana has.
func written(t *testing.T) *dashboard.Dashboard {
	t.Helper()
	plugins.RegisterDefaultPlugins()
	board := new(dashboard.Dashboard)
	if err := board.UnmarshalJSONStrict([]byte(read(t, "deploy/grafana/dashboard.json"))); err != nil {
		t.Fatal(err)
	}
	if err := board.Validate(); err != nil {
		t.Error(err)
	}
	return board
}

// TestOfUs: what other programs have, too, is only asked of ratelimitd's servers.
func TestOfUs(t *testing.T) {
	asked := 0
	for _, r := range rows() {
		for _, p := range r.panels {
			for _, q := range p.queries {
				expr := selectors().Replace(q.expr)
				if !regexp.MustCompile(`\b(up|process_\w+|go_\w+)\{`).MatchString(expr) {
					continue
				}
				asked++
				if !strings.Contains(expr, "and on (namespace, job, instance)") || !strings.Contains(expr, "ratelimitd_build_info{") {
					t.Errorf("%q is about everything that Prometheus scrapes: %s", p.title, expr)
				}
			}
		}
	}
	if asked < 5 {
		t.Errorf("only %d queries are of what others have, too: are these all?", asked)
	}
}

// TestLayout: panels have ids and titles of their own, and none lies on another one or outside the grid.
func TestLayout(t *testing.T) {
	ids, titles := map[uint32]bool{}, map[string]bool{}
	take := func(id uint32, title string) {
		if id == 0 || ids[id] || title == "" || titles[title] {
			t.Errorf("panel %d, %q: the id or the title is another one's too, or missing", id, title)
		}
		ids[id], titles[title] = true, true
	}
	place := func(taken map[[2]uint32]string, title string, at *dashboard.GridPos) {
		if at.X+at.W > 24 || at.W == 0 || at.H == 0 {
			t.Errorf("%q has no place in the grid: %+v", title, *at)
		}
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other := taken[[2]uint32{x, y}]; other != "" {
					t.Fatalf("%q lies on %q", title, other)
				}
				taken[[2]uint32{x, y}] = title
			}
		}
	}
	open := map[[2]uint32]string{}
	for _, p := range written(t).Panels {
		if p.Panel != nil {
			take(*p.Panel.Id, *p.Panel.Title)
			place(open, *p.Panel.Title, p.Panel.GridPos)
			continue
		}
		take(p.RowPanel.Id, *p.RowPanel.Title)
		place(open, *p.RowPanel.Title, p.RowPanel.GridPos)
		if p.RowPanel.Collapsed != (len(p.RowPanel.Panels) > 0) {
			t.Errorf("row %q: a row that is closed holds its panels, an open one does not", *p.RowPanel.Title)
		}
		closed := map[[2]uint32]string{}
		for _, q := range p.RowPanel.Panels {
			take(*q.Id, *q.Title)
			place(closed, *q.Title, q.GridPos)
			if q.GridPos.Y <= p.RowPanel.GridPos.Y {
				t.Errorf("%q lies above its row", *q.Title)
			}
		}
	}
}

// TestPanels: each panel says what it shows, in what unit, and what to do, and its queries are about the servers that were chosen and
// series that docs/metrics.md has.
func TestPanels(t *testing.T) {
	known := read(t, "docs/metrics.md")
	name := regexp.MustCompile(`\b(?:ratelimit|runtime_|certs_)\w+`)
	var panels []dashboard.Panel
	for _, p := range written(t).Panels {
		switch {
		case p.RowPanel != nil:
			panels = append(panels, p.RowPanel.Panels...)
		case p.Panel.Type != "text":
			panels = append(panels, *p.Panel)
		}
	}
	for _, p := range panels {
		if p.Description == nil || len(*p.Description) < 20 || p.FieldConfig.Defaults.Unit == nil || len(p.Targets) == 0 {
			t.Errorf("%q lacks a description, a unit or queries", *p.Title)
			continue
		}
		if !leads(t, *p.Links[0].Url) {
			t.Errorf("%q leads to %s, which does not exist", *p.Title, *p.Links[0].Url)
		}
		if c := p.FieldConfig.Defaults.Thresholds; c != nil {
			for i := 2; i < len(c.Steps); i++ {
				if *c.Steps[i].Value <= *c.Steps[i-1].Value {
					t.Errorf("%q: thresholds do not rise", *p.Title)
				}
			}
		}
		for _, target := range p.Targets {
			q := target.(*prometheus.Dataquery)
			if !strings.Contains(q.Expr, `job=~"$job"`) && !strings.Contains(q.Expr, "ALERTS{") {
				t.Errorf("%q: %s is about all servers that there are", *p.Title, q.Expr)
			}
			if p.Type == "timeseries" && *q.LegendFormat == "" {
				t.Errorf("%q: %s has no legend", *p.Title, q.Expr)
			}
			for _, metric := range name.FindAllString(q.Expr, -1) {
				metric = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(metric, "")
				if !strings.Contains(known, "| `"+metric+"` |") && !strings.HasPrefix(metric, "ratelimit_service_rate_limit_") {
					t.Errorf("%q: docs/metrics.md does not have %s", *p.Title, metric)
				}
			}
		}
	}
}

// headings returns the names of the sections of a text, as links have them.
func headings(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// leads reports whether a URL is a section of a page below docs.
func leads(t *testing.T, url string) bool {
	t.Helper()
	page, section, _ := strings.Cut(strings.TrimPrefix(url, docs), "#")
	return strings.HasPrefix(url, docs) && slices.Contains(headings(read(t, "docs/"+page)), section)
}

// TestRunbooks: each alert leads to the section of docs/runbooks.md that has its name, each section is of an alert, and none is longer
// than one reads at night.
func TestRunbooks(t *testing.T) {
	const most = 120 // words
	rules, page := read(t, "deploy/grafana/rules.yaml"), read(t, "docs/runbooks.md")
	var alerts []string
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+)\n(.*?)runbook_url: (\S+)`).FindAllStringSubmatch(rules, -1) {
		if want := docs + "runbooks.md#" + strings.ToLower(m[1]); m[3] != want || strings.Contains(m[2], "- alert: ") {
			t.Errorf("%s leads to %s, want %s", m[1], m[3], want)
		}
		alerts = append(alerts, m[1])
	}
	if len(alerts) < 10 {
		t.Fatalf("only %d alerts", len(alerts))
	}
	slices.Sort(alerts)
	var sections []string
	for _, section := range strings.Split(page, "\n## ")[1:] {
		name, text, _ := strings.Cut(section, "\n")
		if words := len(strings.Fields(text)); words > most {
			t.Errorf("%s has %d words, want at most %d", name, words, most)
		}
		sections = append(sections, name)
	}
	slices.Sort(sections)
	if alerts = slices.Compact(alerts); !slices.Equal(alerts, sections) {
		t.Errorf("docs/runbooks.md has sections for %v, want %v", sections, alerts)
	}
	intro, _, _ := strings.Cut(page, "\n## ")
	if five := regexp.MustCompile(`\[RateLimit\w+\]`).FindAllString(intro, -1); len(five) != 5 {
		t.Errorf("docs/runbooks.md names %v as those that matter most, want five", five)
	}
}

// TestWatched: what docs/operate.md says to watch is on the dashboard, or in an alert; the five rows to start with come first, and have an
// alert, but for the one of Envoy's own counters.
func TestWatched(t *testing.T) {
	_, text, _ := strings.Cut(read(t, "docs/operate.md"), "\n## What to watch\n")
	text, _, _ = strings.Cut(text, "\n## ")
	shown, err := json.Marshal(written(t))
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("(?m)^\\| (\\*\\*)?(?:Envoy's own )?`(\\w+)").FindAllStringSubmatch(text, -1)
	if len(names) < 10 {
		t.Fatalf("the table has %d rows", len(names))
	}
	alerts := read(t, "deploy/grafana/rules.yaml")
	for i, n := range names {
		bold, envoys := n[1] != "", strings.HasPrefix(n[2], "envoy_")
		if !envoys && !strings.Contains(string(shown)+alerts, n[2]) || bold && !envoys && !strings.Contains(alerts, n[2]) {
			t.Errorf("nothing shows %s, or alerts on it", n[2])
		}
		if bold != (i < 5) {
			t.Errorf("%s is row %d, in bold: %v; want the first five in bold", n[2], i+1, bold)
		}
	}
}
