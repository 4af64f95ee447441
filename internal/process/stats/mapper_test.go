package stats

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

// mapping writes a mapping file and returns its path.
func mapping(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mapping.yaml")
	testkit.WriteFile(t, file, text)
	return file
}

// mapperOf returns the mapper of a mapping.
func mapperOf(t *testing.T, text string) *Mapper {
	t.Helper()
	m, err := LoadMapper(mapping(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// mappedLines returns the series of r with a mapping, without those of Go and the process.
func mappedLines(t *testing.T, r *Registry, c PrometheusConfig) []string {
	t.Helper()
	_, all := scrapeWith(t, r, c)
	var lines []string
	for line := range strings.Lines(all) {
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "go_") && !strings.HasPrefix(line, "process_") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	slices.Sort(lines)
	return lines
}

const allOfAMapping = `
defaults:
  observer_type: histogram
  histogram_options: {buckets: [0.005, 0.01, 0.025]}
mappings:
- match: ratelimit.service.rate_limit.*.*.total_hits
  name: hits
  help: Asked for.
  labels: {domain: "$1", rule: "$2", fixed: x}
- match: 'ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.(over|near)_limit'
  match_type: regex
  name: "limit_$3"
  labels: {domain: "$1", rule: "$2"}
- match: ratelimit.service.rate_limit.shop.*.within_limit
  name: unused
  action: drop
- match: ratelimit_server.*.response_time
  name: took_seconds
  scale: 0.001
  labels: {method: "$1"}
- match: ratelimit_server.*.total_requests
  name: calls
  match_metric_type: counter
- match: ratelimitd.memory.keys
  name: calls
- match: 'ratelimitd\.override_ignored_total.*__reason=(.*)'
  match_type: regex
  name: ignored
  labels: {reason: "by $1", tag: "$0"}
`

func TestMapper(t *testing.T) {
	t.Parallel()
	m := mapperOf(t, allOfAMapping)
	got := mappedLines(t, filled(), PrometheusConfig{Mapper: m, Labels: []Label{{"zone", "eu"}}})
	goldentest.Golden(t, "testdata/mapped.txt", strings.Join(got, "\n")+"\n", *rewrite)
	_, all := scrapeWith(t, filled(), PrometheusConfig{Mapper: m})
	for _, help := range []string{
		"# HELP hits Asked for.\n# TYPE hits counter\n", // from the mapping
		"# HELP limit_near Hits within the limit, but above NEAR_LIMIT_RATIO of it.\n",
		"# HELP limit_over Hits over the limit, including the admitted hits of rules in shadow mode.", // the first one in alphabetical order
		"# HELP ratelimitd_panics_total Calls that ended in a panic, which is a bug; the log has the stack.\n",
	} {
		if !strings.Contains(all, help) {
			t.Errorf("the help lacks %q in\n%s", help, all)
		}
	}
}

// TestOldMapping: files with timer_type, such as Envoy Gateway's, are accepted.
func TestOldMapping(t *testing.T) {
	t.Parallel()
	m := mapperOf(t, `
mappings:
- match: ratelimit_server.*.response_time
  name: took
  timer_type: histogram
  buckets: [1, 10]
  labels: {method: "$1"}
`)
	r := New()
	r.ObserveCall("ShouldRateLimit", 0.005)
	want := []string{
		`took_bucket{method="ShouldRateLimit",le="1"} 0`,
		`took_bucket{method="ShouldRateLimit",le="10"} 1`,
		`took_bucket{method="ShouldRateLimit",le="+Inf"} 1`,
	}
	got := mappedLines(t, r, PrometheusConfig{Mapper: m})
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("no line %s in\n%s", line, strings.Join(got, "\n"))
		}
	}
}

func TestMapperRejected(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"mappings: [{match: a..b, name: b}]", "invalid match: a..b"},
		{"mappings: [{match: a.*}]", "metric mapping didn't set a metric name"},
		{"mappings: [{match: '(', match_type: regex, name: b}]", "invalid regex ("},
		{"- a", "cannot unmarshal"},
	} {
		file := mapping(t, tt.text)
		if _, err := LoadMapper(file); err == nil || !strings.HasPrefix(err.Error(), "reading the mapping file "+file+": ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v\nwant %q", tt.text, err, tt.want)
		}
	}
	if _, err := LoadMapper("no/such.yaml"); err == nil || !strings.Contains(err.Error(), "no/such.yaml") {
		t.Errorf("no file: %v", err)
	}
}

// TestMappedSummary: a series without a mapping is a summary of the last ten minutes.
func TestMappedSummary(t *testing.T) {
	t.Parallel()
	m := mapperOf(t, "mappings: [{match: ratelimit_server.*.response_time, name: t, summary_options: {quantiles: [{quantile: 0.5}, {quantile: 0.99}]}}]")
	synctest.Test(t, func(t *testing.T) {
		r := New()
		h := r.Handler(PrometheusConfig{Mapper: m})
		quantiles := func() (values [2]float64, count uint64) {
			t.Helper()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			for line := range strings.Lines(w.Body.String()) {
				_, _ = fmt.Sscanf(line, `t{quantile="0.5"} %g`, &values[0])
				_, _ = fmt.Sscanf(line, `t{quantile="0.99"} %g`, &values[1])
				_, _ = fmt.Sscanf(line, "t_count %d", &count)
			}
			return values, count
		}
		check := func(count uint64, median, p99 float64) {
			t.Helper()
			got, n := quantiles()
			near := func(got, want float64) bool { return got > want*0.95 && got < want*1.05 }
			if n != count || !near(got[0], median) || !near(got[1], p99) {
				t.Errorf("%d calls with quantiles %v ms; want %d, %v and %v", n, got, count, median, p99)
			}
		}
		for i := range 100 {
			r.ObserveCall("M", 0.001*float64(1+i))
		}
		check(100, 50, 99)
		for range 20 { // one scrape a minute
			time.Sleep(time.Minute)
			for range 10 {
				r.ObserveCall("M", 1)
			}
			quantiles()
		}
		check(300, 1000, 1000)
		time.Sleep(11 * time.Minute)
		quantiles()
		time.Sleep(11 * time.Minute)
		if got, n := quantiles(); n != 300 || got[0] == got[0] { // NaN without calls
			t.Errorf("%d calls with quantiles %v after ten minutes without one", n, got)
		}
	})
}

func TestMappedTTL(t *testing.T) {
	t.Parallel()
	m := mapperOf(t, "defaults: {ttl: 1m}\nmappings: [{match: certs.load_attempts, name: kept, ttl: 1h}]")
	synctest.Test(t, func(t *testing.T) {
		r := New()
		r.Counter(CertsLoadAttempts).Add(1)
		r.Counter(CertsLoadFailures).Add(1)
		shown := func() int { return len(mappedLines(t, r, PrometheusConfig{Mapper: m})) }
		if n := shown(); n != 2 {
			t.Errorf("%d series, want 2", n)
		}
		time.Sleep(time.Minute)
		if n := shown(); n != 1 {
			t.Errorf("%d series after a minute, want 1", n)
		}
		r.Counter(CertsLoadFailures).Add(1)
		if n := shown(); n != 2 {
			t.Errorf("%d series after it counts again, want 2", n)
		}
	})
}

// TestExtraLabels: labels of a series take precedence over extra labels, which are renamed like conflicting labels in
// Prometheus.
func TestExtraLabels(t *testing.T) {
	t.Parallel()
	r := New()
	r.Rule(count.NewKey("d", "k")).TotalHits.Add(1)
	r.ObserveCall("M", 1)
	r.Histogram(BackendBatchSize, 1).Observe(1)
	got := mappedLines(t, r, PrometheusConfig{Labels: []Label{
		{"a-b", "1"}, {"a.b", "2"}, {"domain", "x"}, {"le", "y"}, {"none", ""}, {"utf", "\xff"},
	}})
	for _, want := range []string{
		`ratelimit_service_rate_limit_total_hits{a_b="1",domain="d",exported_a_b="2",exported_domain="x",exported_le="y",key1="k",utf="` + "\uFFFD" + `"} 1`,
		`ratelimit_service_total_requests{a_b="1",domain="x",exported_a_b="2",exported_le="y",grpc_method="M",utf="` + "\uFFFD" + `"} 1`,
		`ratelimitd_backend_batch_size_bucket{a_b="1",domain="x",exported_a_b="2",exported_le="y",utf="` + "\uFFFD" + `",le="1"} 1`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no line %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
}
