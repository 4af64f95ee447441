package stats

import (
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

// scrape returns Prometheus' series without comments and those of the runtime and the process.
func scrape(tb testing.TB, r *Registry) (lines []string, all string) {
	tb.Helper()
	return scrapeWith(tb, r, PrometheusConfig{})
}

func scrapeWith(tb testing.TB, r *Registry, c PrometheusConfig) (lines []string, all string) {
	tb.Helper()
	w := httptest.NewRecorder()
	r.Handler(c).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("the scrape fails with %d: %s", w.Code, w.Body)
	}
	all = w.Body.String()
	for line := range strings.Lines(all) {
		if strings.HasPrefix(line, "ratelimit") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines, all
}

func TestPrometheus(t *testing.T) {
	got, all := scrape(t, filled())
	slices.Sort(got)
	goldentest.Golden(t, "testdata/prometheus.txt", strings.Join(got, "\n")+"\n", *rewrite)
	for _, line := range []string{
		"# TYPE ratelimit_service_rate_limit_total_hits counter\n",
		"# TYPE ratelimit_service_response_time_seconds histogram\n",
		"\ngo_goroutines ", "\nprocess_start_time_seconds ",
	} {
		if !strings.Contains(all, line) {
			t.Errorf("the scrape lacks %q", line)
		}
	}
}

// TestOfTheSamePath: reserved hits of several rules with one path are added, limits and estimates are not.
func TestOfTheSamePath(t *testing.T) {
	r := New()
	r.Source(func(to *Values) {
		for _, n := range []float64{300, 500, 200} {
			to.Gauge(LearnedEstimate, n, "llm.user")
			to.Gauge(ReservedHits, n, "llm.user")
			to.Gauge(RuleLimit, n, "fixed_window", "", "llm.user", "day")
		}
	})
	got, _ := scrape(t, r)
	want := []string{
		`ratelimitd_learned_estimate{rule="llm.user"} 500`,
		`ratelimitd_reserved_hits{rule="llm.user"} 1000`,
		`ratelimitd_rule_limit{algorithm="fixed_window",rule="llm.user",unit="day"} 500`,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestBuildInfo(t *testing.T) {
	r := New()
	r.BuildInfo("v1.2.3")
	got, _ := scrape(t, r)
	if len(got) != 1 || !strings.HasPrefix(got[0], `ratelimitd_build_info{goversion="go`) || !strings.HasSuffix(got[0], `",version="v1.2.3"} 1`) {
		t.Errorf("got %q", got)
	}
}

// TestHistogramEqualsThatOfPrometheus: calls count in the same buckets as in Prometheus' histogram.
func TestHistogramEqualsThatOfPrometheus(t *testing.T) {
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "t", Buckets: prometheus.DefBuckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 256,
	})
	r := New()
	random := rand.New(rand.NewPCG(1, 2))
	values := []float64{1, 0.5, 0.25, 0.005, 10, 500, 0.000001, 0.1, 2.5}
	for range 10000 {
		values = append(values, 1e-6*float64(1+random.IntN(1<<random.IntN(28))))
	}
	sum := 0.0
	for _, v := range values {
		theirs.Observe(v)
		r.ObserveCall("m", v)
		sum += v
	}
	var want dto.Metric
	if err := theirs.Write(&want); err != nil {
		t.Fatal(err)
	}
	got := (*r.calls.Load())["m"].read()
	if d := got.GetSampleSum() - sum; d > 0.001 || d < -0.001 {
		t.Errorf("the sum is %v, want %v", got.GetSampleSum(), sum)
	}
	ignore := protocmp.IgnoreFields(&dto.Histogram{}, "sample_sum", "created_timestamp")
	if diff := cmp.Diff(want.GetHistogram(), got, protocmp.Transform(), ignore); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestObserveCallOutOfRange(t *testing.T) {
	r := New()
	for _, v := range []float64{-1, 0, 1e-12, 1e12, math.NaN(), math.Inf(1)} {
		r.ObserveCall("m", v)
	}
	h := (*r.calls.Load())["m"].read()
	if h.GetSampleCount() != 6 {
		t.Errorf("%d calls were counted, want 6", h.GetSampleCount())
	}
	if n := h.GetBucket()[0].GetCumulativeCount(); n != 4 {
		t.Errorf("%d calls took up to 5 ms, want 4", n)
	}
}

// What end users put into names and labels is no order to the terminal of a reader, here and on /stats alike.
func TestNoOrdersToTerminals(t *testing.T) {
	r := New()
	const hostile = "a\x1b]0;x\a\u009b31m\u202e\u2066\r\nb: 9\x7f\xff"
	r.Rule(count.NewKey("d"+hostile, "k_"+hostile, hostile)).TotalHits.Add(2)
	r.Counter(XDSEventsTotal, hostile).Add(3)
	_, metrics := scrapeWith(t, r, PrometheusConfig{Labels: []Label{{"extra", hostile}}})
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	clean := "a_]0;x__31m____b"
	for page, want := range map[string]string{
		metrics:       `ratelimit_service_rate_limit_total_hits{domain="d` + clean + `_ 9_` + "\uFFFD" + `",extra="` + clean + `: 9_` + "\uFFFD" + `",key1="k_`,
		text.String(): "ratelimit.service.rate_limit.d" + clean + "_ 9_\uFFFD.k_" + clean,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("want %q in\n%s", want, page)
		}
		if i := strings.IndexFunc(page, func(c rune) bool { return c != '\n' && unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) }); i >= 0 {
			t.Errorf("%q is in the page", page[i:min(i+20, len(page))])
		}
	}
}
