package stats

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// scrape returns what Prometheus reads, without comments and the series of the runtime and the process.
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
	want := []string{
		`ratelimit_service_config_load_success 2`,
		`ratelimit_service_rate_limit_near_limit{domain="shop",key1="a",key2="b_1"} 7`,
		`ratelimit_service_rate_limit_no_where_domain_not_found 2`,
		`ratelimit_service_rate_limit_over_limit_with_local_cache{domain="shop",key1="a",key2="b_1"} 1`,
		`ratelimit_service_rate_limit_over_limit{domain="shop",key1="a",key2="b_1"} 1`,
		`ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 2`,
		`ratelimit_service_rate_limit_shadow_mode{domain="shop",key1="a",key2="b_1"} 1`,
		`ratelimit_service_rate_limit_total_hits{domain="shop",key1="a",key2="b_1"} 11`,
		`ratelimit_service_rate_limit_total_hits{domain="shop",key1="bad_` + "\uFFFD" + `"} 2`,
		`ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 5`,
		`ratelimit_service_rate_limit_total_negative_hits{domain="my.domain",key1="host_a.b",key2="x_\"y"} 4`,
		`ratelimit_service_rate_limit_within_limit{domain="shop",key1="user"} 3`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.01"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.025"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.05"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.1"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.25"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.5"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="2.5"} 2`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5"} 2`,
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 2`,
		`ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 0.023`,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"} 3`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 2`,
		`ratelimitd_backend_breaker_state{node="y"} 2`,
		`ratelimitd_memory_keys 1.5`,
		`ratelimitd_override_ignored_total{domain="my.domain",reason="invalid"} 1`,
		`ratelimitd_panics_total 0`, // before the first one
		`ratelimitd_unlimited_hits_total{domain="shop",key1="free"} 6`,
	}
	got, all := scrape(t, filled())
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
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

// TestOfTheSamePath: limits and estimates of several rules with one path do not add up, reserved hits do.
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

// A call is counted in the same buckets as by Prometheus' own histogram.
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

// The limiter's bounds allow requests to add at most a thousand keys per rule.
func TestH8ScrapeOfAThousandKeys(t *testing.T) {
	r := New()
	for i := range 1000 {
		c := r.Rule(count.NewKey("shop", fmt.Sprintf("user_%064d", i)))
		for _, n := range []*count.Counter{&c.TotalHits, &c.OverLimit, &c.NearLimit, &c.WithinLimit, &c.ShadowMode} {
			n.Add(uint64(i) + 1)
		}
	}
	var lines []string
	var all string
	best := time.Duration(math.MaxInt64) // the best of several attempts, since the machine may be busy
	for range 5 {
		start := time.Now()
		lines, all = scrape(t, r)
		best = min(best, time.Since(start))
	}
	if best > 2*time.Second {
		t.Errorf("the scrape took %v; the aim is 200 ms", best)
	}
	if len(lines) != 5000 {
		t.Errorf("there are %d series, want 5000", len(lines))
	}
	if len(all) > 1<<20 {
		t.Errorf("the scrape has %d bytes, want at most 1 MB", len(all))
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
