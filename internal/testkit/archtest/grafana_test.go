package archtest_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// panel is a panel of the dashboard, or a row of panels.
type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	}
	Links   []struct{ URL string }
	Targets []struct{ Expr, LegendFormat string }
	Panels  []panel // panels of a collapsed row
}

// TestPanels checks that each panel of the dashboard has a unique ID and place, a description, a unit and a link to an existing section,
// and that its queries use series of docs/metrics.md and select the chosen servers, in case other programs have the same series.
func TestPanels(t *testing.T) {
	t.Parallel()
	var board struct{ Panels []panel }
	testkit.Check(t, json.Unmarshal([]byte(text(t, "deploy/grafana/dashboard.json")), &board))
	ids, metrics := map[int]bool{}, text(t, "docs/metrics.md")
	var walk func(panels []panel)
	walk = func(panels []panel) {
		taken := map[[2]int]string{}
		for _, p := range panels {
			if p.ID == 0 || ids[p.ID] || p.Title == "" {
				t.Errorf("panel %d, %q: the ID is another panel's too, or the title is missing", p.ID, p.Title)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
						t.Fatalf("%q lies on %q, or outside the grid", p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			walk(p.Panels)
			if p.Type == "row" || p.Type == "text" {
				continue
			}
			if len(p.Description) < 20 || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 || len(p.Links) == 0 || !leads(t, p.Links[0].URL) {
				t.Errorf("%q lacks a description, a unit, queries, or a link to a section of docs that exists", p.Title)
			}
			for _, q := range p.Targets {
				others := regexp.MustCompile(`\b(up|process_\w+|go_\w+)\{`).MatchString(q.Expr)
				if !strings.Contains(q.Expr, `job=~"$job"`) && !strings.Contains(q.Expr, "ALERTS{") ||
					others && !strings.Contains(q.Expr, "and on (namespace, job, instance)") {
					t.Errorf("%q: %s is about everything that Prometheus scrapes", p.Title, q.Expr)
				}
				for _, name := range regexp.MustCompile(`\b(?:ratelimit|runtime_|certs_)\w+`).FindAllString(q.Expr, -1) {
					name = regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
					if !strings.Contains(metrics, "| `"+name+"` |") && !strings.HasPrefix(name, "ratelimit_service_rate_limit_") {
						t.Errorf("%q: docs/metrics.md does not have %s", p.Title, name)
					}
				}
			}
		}
	}
	walk(board.Panels)
	if len(ids) < 50 {
		t.Errorf("only %d panels", len(ids))
	}
}

// leads reports whether a URL is a section of an existing page below docs.
func leads(t *testing.T, url string) bool {
	t.Helper()
	page, section, _ := strings.Cut(strings.TrimPrefix(url, "https://github.com/ratelimitd/ratelimitd/blob/main/"), "#")
	if !strings.HasPrefix(page, "docs/") {
		return false
	}
	for _, m := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(text(t, page), -1) {
		if strings.ReplaceAll(regexp.MustCompile(`[^\w -]`).ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-") == section {
			return true
		}
	}
	return false
}

// TestRunbooks checks that each alert links to the section of docs/runbooks.md with its name, that each section belongs to an alert, and
// that none is too long to read at night.
func TestRunbooks(t *testing.T) {
	t.Parallel()
	const most = 120 // words
	var alerts, sections []string
	for _, m := range regexp.MustCompile(`(?s)- alert: (\w+)\n(.*?)runbook_url: (\S+)`).FindAllStringSubmatch(text(t, "deploy/grafana/rules.yaml"), -1) {
		if !strings.HasSuffix(m[3], "/docs/runbooks.md#"+strings.ToLower(m[1])) || strings.Contains(m[2], "- alert: ") {
			t.Errorf("%s leads to %s", m[1], m[3])
		}
		alerts = append(alerts, m[1])
	}
	parts := strings.Split(text(t, "docs/runbooks.md"), "\n## ")
	for _, section := range parts[1:] {
		name, body, _ := strings.Cut(section, "\n")
		if words := len(strings.Fields(body)); words > most {
			t.Errorf("%s has %d words, want at most %d", name, words, most)
		}
		sections = append(sections, name)
	}
	slices.Sort(alerts)
	slices.Sort(sections)
	if alerts = slices.Compact(alerts); len(alerts) < 10 || !slices.Equal(alerts, sections) {
		t.Errorf("docs/runbooks.md has sections for %v, want %v", sections, alerts)
	}
	if five := regexp.MustCompile(`\[RateLimit\w+\]`).FindAllString(parts[0], -1); len(five) != 5 {
		t.Errorf("docs/runbooks.md names %v as those that matter most, want five", five)
	}
}

// TestWatched checks that everything docs/operate.md recommends to watch is on the dashboard or in an alert. The five rows to start with
// come first and have an alert, except the one of Envoy's own counters.
func TestWatched(t *testing.T) {
	t.Parallel()
	_, rows, _ := strings.Cut(text(t, "docs/operate.md"), "\n## What to watch\n")
	rows, _, _ = strings.Cut(rows, "\n## ")
	names := regexp.MustCompile("(?m)^\\| (\\*\\*)?(?:Envoy's own )?`(\\w+)").FindAllStringSubmatch(rows, -1)
	if len(names) < 10 {
		t.Fatalf("the table has %d rows", len(names))
	}
	shown, alerts := text(t, "deploy/grafana/dashboard.json"), text(t, "deploy/grafana/rules.yaml")
	for i, n := range names {
		bold, envoys := n[1] != "", strings.HasPrefix(n[2], "envoy_")
		if !envoys && !strings.Contains(shown+alerts, n[2]) || bold && !envoys && !strings.Contains(alerts, n[2]) {
			t.Errorf("nothing shows %s, or alerts on it", n[2])
		}
		if bold != (i < 5) {
			t.Errorf("%s is row %d, in bold: %v; want the first five in bold", n[2], i+1, bold)
		}
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, path))
	testkit.Check(t, err)
	return string(raw)
}
