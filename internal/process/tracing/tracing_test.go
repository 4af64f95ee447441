package tracing_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tracingtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1}
`

// world is a server that is traced, as cmd/ratelimitd builds it.
type world struct {
	ratelimitv3.RateLimitServiceClient

	t      *testing.T
	conn   *grpc.ClientConn
	http   *httptest.Server
	tracer *tracing.Tracer
	stop   func() // waits for calls under way, whose spans end after their answers
}

// startCollector runs a collector that speaks this protocol, and points the exporters to it.
func startCollector(t *testing.T, protocol string) *tracingtest.Collector {
	t.Helper()
	c, err := tracingtest.Start(protocol)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	return c
}

// start runs a server whose spans go where the environment says. Its tracer is not told to end.
func start(t *testing.T, c tracing.Config) *world {
	t.Helper()
	if c.Flush == 0 {
		c.Flush = testkit.Patience
	}
	tracer, err := tracing.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	store := tracer.Backend(memory.New(memory.Config{}), tracing.Store{Span: "Redis Pipeline Execution", Length: "pipeline length"})
	l := limiter.New(store, stats.New(), limiter.Config{})
	l.SetRules(rulefiletest.Load(t, rules))
	service := rls.New(tracer.Decider(l), rls.Config{})
	server := grpcserver.New(service, grpcserver.Config{Tracing: tracer.Server()})
	ln := testkit.Listen(t)
	testkit.Run(t, func(context.Context) error { return server.Serve(ln) })
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	pages := web.Main{JSON: tracer.JSON(service.JSON), Healthy: func() bool { return true }}
	w := &world{
		RateLimitServiceClient: ratelimitv3.NewRateLimitServiceClient(conn), t: t, conn: conn, tracer: tracer,
		http: httptest.NewServer(tracer.Handler(web.MainHandler(pages))),
	}
	w.stop = sync.OnceFunc(func() {
		conn.Close()
		server.GracefulStop()
		w.http.Close()
	})
	t.Cleanup(w.stop)
	return w
}

// flush ends the servers and then the tracer, which sends what is left, and tells how long the tracer took.
func (w *world) flush() time.Duration {
	w.t.Helper()
	w.stop()
	ctx, cancel := context.WithCancel(w.t.Context())
	cancel()
	begin := time.Now()
	if err := w.tracer.Run(ctx); err != nil {
		w.t.Error(err)
	}
	return time.Since(begin)
}

// ask asks with these headers, and reports whether it was rejected.
func (w *world) ask(value string, headers ...string) bool {
	w.t.Helper()
	answer, err := w.ShouldRateLimit(metadata.AppendToOutgoingContext(w.t.Context(), headers...), &ratelimitv3.RateLimitRequest{
		Domain: "shop", Descriptors: []*commonv3.RateLimitDescriptor{{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: value}}}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return answer.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT
}

// post asks over HTTP.
func (w *world) post(header http.Header, body string) int {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.http.URL+"/json?x=1", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header = header
	answer, err := w.http.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	return answer.StatusCode
}

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	parent  = "b7ad6b7169203331"
	nested  = parent + " of " + traceID + `
  envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit
    ShouldRateLimit Execution
      Redis Pipeline Execution
`
)

func TestSpansAreNested(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			c := startCollector(t, protocol)
			w := start(t, tracing.Config{Service: "RateLimit", Namespace: "edge", Instance: "i1", Protocol: protocol, Rate: 1})
			if w.ask("planted", "traceparent", "00-"+traceID+"-"+parent+"-01", "x-secret", "planted", "baggage", "k=planted") {
				t.Error("rejected")
			}
			if _, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
			w.flush()
			if diff := cmp.Diff(nested, c.Tree()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			want := map[string]string{"service.name": "RateLimit", "service.namespace": "edge", "service.instance.id": "i1"}
			if diff := cmp.Diff(want, c.Resource()); diff != "" {
				t.Errorf("resource (-want +got):\n%s", diff)
			}
			for name, want := range map[string]map[string]string{
				"ShouldRateLimit Execution": {"domain": "shop", "descriptors length": "1", "over_limit": "false"},
				"Redis Pipeline Execution":  {"pipeline length": "1", "failed": "0"},
			} {
				if diff := cmp.Diff(want, find(t, c, name).Attributes); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			if c.Holds("planted") {
				t.Error("a value got into a span")
			}
		})
	}
}

func find(t *testing.T, c *tracingtest.Collector, name string) tracingtest.Span {
	t.Helper()
	for _, s := range c.Spans() {
		if s.GetName() == name {
			return s
		}
	}
	t.Fatalf("no span %s:\n%s", name, c.Tree())
	return tracingtest.Span{}
}

// Traces continue those that Envoy, Istio and Zipkin send.
func TestPropagation(t *testing.T) {
	for name, headers := range map[string][]string{
		"tracecontext": {"traceparent", "00-" + traceID + "-" + parent + "-01"},
		"B3":           {"x-b3-traceid", traceID, "x-b3-spanid", parent, "x-b3-sampled", "1"},
		"B3 in one":    {"b3", traceID + "-" + parent + "-1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCollector(t, "http")
			w := start(t, tracing.Config{Rate: 0}) // the caller has decided
			w.ask("ann", headers...)
			header := http.Header{}
			for i := 0; i < len(headers); i += 2 {
				header.Set(headers[i], headers[i+1])
			}
			if code := w.post(header, `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}`); code != http.StatusOK {
				t.Errorf("status %d", code)
			}
			w.flush()
			want := nested + `  POST /json
    ShouldRateLimit Execution
      Redis Pipeline Execution
`
			if diff := cmp.Diff(want, c.Tree()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := find(t, c, "POST /json").Attributes["http.response.status_code"]; got != "200" {
				t.Errorf("status of the span is %q", got)
			}
		})
	}
}

func TestSampling(t *testing.T) {
	for _, tt := range []struct {
		name    string
		rate    float64
		headers []string
		want    int
	}{
		{"all", 1, nil, 3},
		{"none", 0, nil, 0},
		{"the caller wants none", 1, []string{"traceparent", "00-" + traceID + "-" + parent + "-00"}, 0},
		{"the caller wants it", 0, []string{"traceparent", "00-" + traceID + "-" + parent + "-01"}, 3},
		{"what is no trace", 0, []string{"traceparent", "00-zz-1", "b3", "%%%"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := startCollector(t, "http")
			w := start(t, tracing.Config{Rate: tt.rate})
			w.ask("ann", tt.headers...)
			w.flush()
			if got := len(c.Spans()); got != tt.want {
				t.Errorf("%d spans, want %d", got, tt.want)
			}
		})
	}
}

func TestValuesAndRejections(t *testing.T) {
	c := startCollector(t, "http")
	w := start(t, tracing.Config{Rate: 1, Values: true})
	w.ask("planted")
	if !w.ask("planted") {
		t.Error("passed")
	}
	w.flush()
	rejected := 0
	for _, s := range c.Spans() {
		if s.GetName() != "ShouldRateLimit Execution" {
			continue
		}
		if got := s.Attributes["descriptors"]; got != "user=planted" {
			t.Errorf("descriptors %q", got)
		}
		if s.Attributes["over_limit"] == "true" && s.Attributes["rule"] == "shop.user" {
			rejected++
		}
	}
	if rejected != 1 {
		t.Errorf("%d spans tell of a rejection and its rule, want 1", rejected)
	}
	if instance := c.Resource()["service.instance.id"]; !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(instance) {
		t.Errorf("instance %q is no random UUID", instance)
	}
}

// The span of a failed call says so, and no bytes in a domain can break a span.
func TestFailures(t *testing.T) {
	c := startCollector(t, "http")
	w := start(t, tracing.Config{Rate: 1})
	_, err := w.ShouldRateLimit(t.Context(), &ratelimitv3.RateLimitRequest{Domain: strings.Repeat("d", 100_000)})
	if err == nil {
		t.Error("no descriptors are no error")
	}
	if code := w.post(nil, `{"domain":"shop"}`); code != http.StatusBadRequest {
		t.Errorf("status %d", code)
	}
	w.flush()
	s := find(t, c, "ShouldRateLimit Execution")
	if s.GetStatus().GetMessage() != "rate limit descriptor list must not be empty" || len(s.Attributes["domain"]) > 300 {
		t.Errorf("span %v", s)
	}
	if got := find(t, c, "POST /json").Attributes["http.response.status_code"]; got != "400" {
		t.Errorf("status of the span is %q", got)
	}
}

// A collector that accepts everything but never answers delays neither requests nor the end.
func TestCollectorThatHangs(t *testing.T) {
	awaitGoroutines(t)
	release := make(chan struct{})
	asked := make(chan struct{}, 1000)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-release
	}))
	defer s.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", s.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1") // ms
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "64")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
	var said testkit.Buffer
	w := start(t, tracing.Config{Rate: 1, Flush: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&said, nil))})
	begin := time.Now()
	for range 500 { // 1,500 spans
		w.ask("ann")
	}
	if took := time.Since(begin); took > testkit.Patience {
		t.Errorf("500 calls took %v", took)
	}
	select {
	case <-asked:
	case <-time.After(testkit.Patience):
		t.Error("the collector was not asked")
	}
	if took := w.flush(); took > testkit.Patience {
		t.Errorf("the end took %v, want 50ms", took)
	}
	if got := said.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "spans were lost, because they could not be sent before the server stopped") {
		t.Errorf("the log says %q", got)
	}
	close(release)
}

// A missing collector is logged only once in a while, however much there is to send, and once at the end.
func TestCollectorThatIsAway(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		t.Run(protocol, func(t *testing.T) {
			awaitGoroutines(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // where no one is
			t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "50")                     // ms, with all tries
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
			t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
			var said testkit.Buffer
			w := start(t, tracing.Config{Rate: 1, Protocol: protocol, Log: slog.New(slog.NewTextHandler(&said, nil))})
			otel.SetErrorHandler(w.tracer)
			t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {})) })
			begin := time.Now()
			for range 10 { // 30 spans, 15 exports
				w.ask("ann")
			}
			w.flush()
			most := 1 + int(time.Since(begin)/(10*time.Second))
			if got := said.String(); !strings.Contains(got, "traces cannot be sent: spans are lost") || strings.Count(got, "\n") > most+1 {
				t.Errorf("the log says %q", got)
			}
		})
	}
}

// awaitGoroutines lets the test end when what it has started has ended, which an export that was given up does by and by.
func awaitGoroutines(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		var err error
		if !testkit.Poll(testkit.Patience, func() bool { err = goleak.Find(before); return err == nil }) {
			t.Error(err)
		}
	})
}

func TestProtocol(t *testing.T) {
	if _, err := tracing.New(t.Context(), tracing.Config{Protocol: "udp"}); err == nil || !strings.Contains(err.Error(), "must be http or grpc") {
		t.Errorf("error %v", err)
	}
}
