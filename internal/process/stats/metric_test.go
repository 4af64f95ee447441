package stats

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

var rewrite = flag.Bool("rewrite", false, "write docs/metrics.md and testdata")

// all returns the rows of the table.
func all() (rows []Row) {
	for _, s := range Table() {
		rows = append(rows, s.Rows...)
	}
	return rows
}

// TestTable: each metric has one row, with distinct texts.
func TestTable(t *testing.T) {
	t.Parallel()
	explained, used := map[string]bool{}, map[string]bool{}
	for _, l := range LabelTexts() {
		if explained[l.Name] {
			t.Errorf("the label %s is explained twice", l.Name)
		}
		explained[l.Name] = true
	}
	seen := map[string]Metric{}
	own := func(r *Row, what string) {
		if other, ok := seen[what]; ok && other != r.metric {
			t.Errorf("metrics %d and %d share %q", other, r.metric, what)
		}
		seen[what] = r.metric
	}
	for i, r := range all() {
		if int(r.metric) != i {
			t.Errorf("%s is row %d, and metric %d; want the same order", r.Name, i, r.metric)
		}
		own(&r, r.Name)
		own(&r, r.Help)
		if r.Statsd != "" {
			own(&r, r.Statsd)
		}
		if !regexp.MustCompile(`^[A-Z0-9][^\\\n|]*\.$`).MatchString(r.Help) && !strings.HasPrefix(r.Help, "gRPC ") {
			t.Errorf("%s: want a sentence on one line: %q", r.Name, r.Help)
		}
		if unit := regexp.MustCompile(`_(seconds|bytes)$`).FindStringSubmatch(r.Name); unit != nil && !strings.Contains(r.Help, "in "+unit[1]) {
			t.Errorf("%s: want its unit in %q", r.Name, r.Help)
		}
		if ours := strings.HasPrefix(r.Name, "ratelimitd_"); ours && (r.Type == "counter") != strings.HasSuffix(r.Name, "_total") {
			t.Errorf("%s is a %s", r.Name, r.Type)
		}
		if !slices.IsSorted(r.Labels) { // like statsd tags
			t.Errorf("%s: the labels %q are not sorted", r.Name, r.Labels)
		}
		for _, l := range r.Labels {
			used[l] = true
		}
	}
	if n := len(all()); n != int(metricCount) {
		t.Errorf("%d metrics have %d rows", metricCount, n)
	}
	if d := cmp.Diff(used, explained); d != "" {
		t.Errorf("labels of the table, and those explained (-used +explained):\n%s", d)
	}
}

// TestTexts: texts name only metrics, or prefixes of metrics, that exist. Sentences end with a full stop.
func TestTexts(t *testing.T) {
	t.Parallel()
	var texts []string
	for _, s := range Table() {
		texts = append(texts, s.Text)
	}
	for _, r := range all() {
		texts = append(texts, r.Help)
	}
	for _, l := range LabelTexts() {
		texts = append(texts, l.Text)
		if run := regexp.MustCompile(`[a-z] (Of|It|The|A|They|Those|With|If) `).FindString(l.Text); run != "" {
			t.Errorf("the label %s: a sentence has no end before %q", l.Name, run[2:])
		}
	}
	for _, text := range texts {
		for _, name := range regexp.MustCompile(`\bratelimitd?_[a-zA-Z_]+`).FindAllString(text, -1) {
			named := func(r Row) bool {
				return r.Name == name || strings.HasSuffix(name, "_") && strings.HasPrefix(r.Name, name)
			}
			if !slices.ContainsFunc(all(), named) {
				t.Errorf("there is no metric %s: %s", name, text)
			}
		}
	}
}

// TestValuesOfLabels: values that do not match the row's labels are a bug of the caller, and the panic names the row.
func TestValuesOfLabels(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{nil, {"a"}, {"a", "b", "c"}} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, `ratelimitd_override_ignored_total has the labels ["domain" "reason"]`) {
					t.Errorf("%q: %s", values, got)
				}
			}()
			New().Counter(OverrideIgnoredTotal, values...)
		}()
	}
}

// TestDocument: docs/metrics.md has the table. run with -rewrite, or make docs, to write it.
func TestDocument(t *testing.T) {
	t.Parallel()
	goldentest.Golden(t, "../../../docs/metrics.md", document(), *rewrite)
}

// document returns docs/metrics.md.
func document() string {
	var b strings.Builder
	b.WriteString(`# Metrics

<!-- Written by make docs from internal/process/stats/table.go. -->

All metrics of ratelimitd, with their names in Prometheus and statsd. The help is the text in Prometheus. Names that begin with
` + "`ratelimitd`" + ` are extensions. The others are those of envoyproxy/ratelimit, with a few
[differences](compatibility.md#7-metrics). Counters start at 0 with the process, unless the help states otherwise. For alerts, see
[What to watch](operate.md#what-to-watch).

Labels are tags in statsd and DogStatsD, unless their values are part of the name. ` + "`<key>`" + ` is the domain and the levels of a rule,
joined with dots. ` + "`/stats`" + ` of the debug port uses the names of statsd. Prometheus also gets ` + "`go_*` and `process_*`" + `, without
EXTRA_TAGS.
`)
	for _, s := range Table() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| in Prometheus | type | labels | help | in statsd |\n| --- | --- | --- | --- | --- |\n", s.Title, wrap(s.Text))
		for _, r := range s.Rows {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Type, code(r.Labels...), r.Help, code(r.Statsd))
		}
	}
	b.WriteString("\n## Labels\n\n| label | value |\n| --- | --- |\n")
	for _, l := range LabelTexts() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", l.Name, l.Text)
	}
	return b.String()
}

// code formats words as code; a dash without words.
func code(words ...string) string {
	text := strings.Join(words, "`, `")
	if text == "" {
		return "–"
	}
	return "`" + text + "`"
}

// wrap breaks a long line.
func wrap(text string) string {
	const most = 140
	if len(text) <= most {
		return text
	}
	i := strings.LastIndexByte(text[:most], ' ')
	return text[:i] + "\n" + wrap(text[i+1:])
}

// TestEachMetricIsReported: all exports report each metric, with all labels, under both of its names.
func TestEachMetricIsReported(t *testing.T) {
	t.Parallel()
	empty := mapperOf(t, "mappings: []\n")
	for _, row := range all() {
		r := New()
		values := make([]string, len(row.Labels))
		for i := range values {
			values[i] = fmt.Sprintf("value%d", i)
		}
		if row.varies() && len(values) == 0 {
			values = []string{"value0"}
		}
		name := row.Statsd
		switch {
		case row.metric <= Rejections:
			k := count.Key{Domain: values[0], Key1: values[1], Key2: values[2], Text: "value0"}
			ruleCounters(r.Rule(k))[row.metric].Add(3)
		case row.Type == Count && row.metric != TotalRequests:
			r.Counter(row.metric, values...).Add(3)
		case row.Type == Gauge:
			r.Gauge(row.metric, func() float64 { return 3 }, values...)
		case len(values) > 0:
			r.ObserveCall(values[0], 0.003)
		default:
			r.Histogram(row.metric, 1, 2).Observe(3)
		}
		name = regexp.MustCompile("<.*>").ReplaceAllString(name, "value0")
		var sent []string
		for s := range r.NewReader().Read {
			sent = append(sent, s.Name())
			if !row.varies() && len(s.Tags()) != len(values) {
				t.Errorf("%s has the tags %v", row.Name, s.Tags())
			}
		}
		if slices.Contains(sent, name) == (row.Statsd == "") {
			t.Errorf("%s is sent as %q, want %q", row.Name, sent, name)
		}
		for _, c := range []PrometheusConfig{{}, {Mapper: empty}} {
			_, text := scrapeWith(t, r, c)
			shown := strings.ReplaceAll(row.Name, "<domain>", "value0")
			if c.Mapper != nil && row.Statsd != "" {
				shown = metricName(name)
			}
			labels := "" // an unmapped series has them in its statsd name
			if c.Mapper == nil || !row.varies() {
				for i, l := range row.Labels {
					labels += fmt.Sprintf(`[{,]%s="%s"`, l, values[i])
				}
			}
			if !regexp.MustCompile(`(?m)^` + shown + `(_sum|_count)?` + labels + `.* `).MatchString(text) {
				t.Errorf("Prometheus does not see %s as %s with %s", row.Name, shown, labels)
			}
		}
	}
}
