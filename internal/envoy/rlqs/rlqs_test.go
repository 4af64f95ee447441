package rlqs_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const rules = `
domain: edge
descriptors:
- key: service
  rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, rlqs: {weight_from: x-weight}}
- key: service
  value: window
  rate_limit: {unit: hour, requests_per_unit: 100000, rlqs: true}
- key: service
  value: sliding
  rate_limit: {unit: hour, requests_per_unit: 100000, algorithm: sliding_window, rlqs: true}
- key: service
  value: closed
  rate_limit: {unit: hour, requests_per_unit: 0, rlqs: true}
- key: service
  value: trial
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1, rlqs: true}
- key: service
  value: asked
  rate_limit: {unit: hour, requests_per_unit: 1}
`

// world is a service with its limiter, and a connection to it.
type world struct {
	*testing.T

	limiter  *limiter.Limiter
	controls *controls.Controls
	service  *rlqs.Service
	listener net.Listener
	conn     *grpc.ClientConn
}

func start(t *testing.T, c rlqs.Config) *world {
	t.Helper()
	return startOn(t, "tcp", "127.0.0.1:0", c)
}

func startOn(t *testing.T, network, address string, c rlqs.Config) *world {
	t.Helper()
	w := &world{T: t, controls: controls.New(controls.Config{})}
	w.limiter = limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Overrides: w.controls.Overrides()})
	w.limiter.SetRules(rulefiletest.Load(t, rules))
	w.service = rlqs.New(w.limiter, c)
	server := grpc.NewServer()
	w.service.Register(server)
	var err error
	if w.listener, err = new(net.ListenConfig).Listen(t.Context(), network, address); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(w.listener) }()
	t.Cleanup(func() {
		w.service.Drain()
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		w.service.Wait()
	})
	w.connect()
	return w
}

// connect opens a new connection for further streams.
func (w *world) connect() {
	w.Helper()
	target := w.listener.Addr().String()
	if w.listener.Addr().Network() == "unix" {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { conn.Close() })
	w.conn = conn
}

// client is a stream like Envoy's.
type client struct {
	*world
	rlqspb.RateLimitQuotaService_StreamRateLimitQuotasClient
}

func (w *world) open(md ...string) *client {
	w.Helper()
	stream, err := rlqspb.NewRateLimitQuotaServiceClient(w.conn).StreamRateLimitQuotas(metadata.AppendToOutgoingContext(w.Context(), md...))
	if err != nil {
		w.Fatal(err)
	}
	return &client{w, stream}
}

func everything(string, []descriptors.Entry) bool { return true }

// bucket returns a bucket ID.
func bucket(pairs ...string) *rlqspb.BucketId {
	id := &rlqspb.BucketId{Bucket: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		id.Bucket[pairs[i]] = pairs[i+1]
	}
	return id
}

// report reports buckets without usage.
func (c *client) report(domain string, ids ...*rlqspb.BucketId) {
	c.Helper()
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: domain}
	for _, id := range ids {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id})
	}
	if err := c.Send(m); err != nil {
		c.Fatal(err)
	}
}

// next returns the next action in words, without numbers.
func (c *client) next() string {
	c.Helper()
	m, err := c.Recv()
	if err != nil {
		return status.Code(err).String() + ": " + status.Convert(err).Message()
	}
	var all []string
	for _, a := range m.GetBucketAction() {
		what := "abandon"
		if q := a.GetQuotaAssignmentAction(); q != nil {
			s := q.GetRateLimitStrategy()
			b := s.GetTokenBucket()
			switch {
			case b == nil:
				what = s.GetBlanketRule().String()
			case b.GetMaxTokens() < 1 || b.GetTokensPerFill().GetValue() < 1 || b.GetFillInterval().GetSeconds() < 1 || b.GetFillInterval().GetNanos() != 0:
				what = "a bucket that Envoy does not limit by: " + b.String()
			default:
				what = "token bucket"
			}
			if ttl := q.GetAssignmentTimeToLive(); ttl.GetSeconds() < 2 || ttl.GetNanos() != 0 {
				what += " that ends at once"
			}
		}
		all = append(all, a.GetBucketId().GetBucket()["service"]+" "+what)
	}
	return strings.Join(all, ", ")
}

// awaits waits for an action.
func (c *client) awaits(want string) {
	c.Helper()
	var got []string
	for range 20 {
		got = append(got, c.next())
		if got[len(got)-1] == want {
			return
		}
	}
	c.Fatalf("no %q came, but %q", want, got)
}

// TestAnswers checks that the answer for a bucket follows from its rule.
func TestAnswers(t *testing.T) {
	t.Parallel()
	for service, want := range map[string]string{
		"shop": "token bucket", "window": "token bucket", "sliding": "token bucket", "closed": typepb.RateLimitStrategy_DENY_ALL.String(),
		"trial": typepb.RateLimitStrategy_ALLOW_ALL.String(),
	} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			c := start(t, rlqs.Config{}).open()
			c.report("edge", bucket("service", service))
			c.awaits(service + " " + want)
		})
	}
}

// TestIgnored checks that clients get no answer for buckets without a rule with rlqs.
func TestIgnored(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	c := w.open()
	c.report("edge", bucket("user", "ann"), bucket("service", "shop", "user", "ann"), bucket("service", "asked"), bucket("service", "shop"))
	for range 2 {
		if got := c.next(); got != "shop token bucket" && got != "asked abandon" {
			t.Errorf("got %q", got)
		}
	}
	if n, _, _ := w.service.Counts(); n.Unknown != 2 {
		t.Errorf("%d reports are counted as unknown, want 2", n.Unknown)
	}
}

// TestEndedStreams checks that a mistake ends a stream, with the reason.
func TestEndedStreams(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	many := bucket()
	for i := range 17 {
		many.Bucket[fmt.Sprint(i)] = ""
	}
	for name, x := range map[string]struct {
		ids     []*rlqspb.BucketId
		domains []string
		want    string
	}{
		"no domain":      {domains: []string{""}, want: "must have a domain"},
		"another domain": {domains: []string{"edge", "shop"}, want: "must not change"},
		"no entries":     {domains: []string{"edge"}, ids: []*rlqspb.BucketId{bucket()}, want: "has 0 entries: want 1 to 16"},
		"many entries":   {domains: []string{"edge"}, ids: []*rlqspb.BucketId{many}, want: "has 17 entries: want 1 to 16"},
		"an empty key":   {domains: []string{"edge"}, ids: []*rlqspb.BucketId{bucket("", "x")}, want: "an empty key"},
		"a long value":   {domains: []string{"edge"}, ids: []*rlqspb.BucketId{bucket("service", strings.Repeat("x", 5000))}, want: "has 5007 bytes: want at most 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.T = t
			c := w.open()
			for _, domain := range x.domains {
				c.report(domain, x.ids...)
			}
			if got := c.next(); !strings.HasPrefix(got, codes.InvalidArgument.String()) || !strings.Contains(got, x.want) {
				t.Errorf("got %q, want %q", got, x.want)
			}
		})
	}
}

// TestWithoutRule checks that the service is unimplemented if no rule has rlqs.
func TestWithoutRule(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	w.limiter.SetRules(rulefiletest.Load(t, "{domain: edge, descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1}}]}"))
	if got := w.open().next(); !strings.HasPrefix(got, codes.Unimplemented.String()) {
		t.Errorf("got %q", got)
	}
}

// TestChanges checks that controls, other numbers and other rules reach clients without a report.
func TestChanges(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	c := w.open()
	c.report("edge", bucket("service", "shop"))
	c.awaits("shop token bucket")
	for _, x := range []struct {
		kind override.Kind
		want string
	}{{override.Block, "shop DENY_ALL"}, {override.Allow, "shop ALLOW_ALL"}} {
		made := &override.Control{Kind: x.kind, Domain: "edge", Entries: []override.Entry{{Key: "service", Value: "shop"}}}
		if _, err := w.controls.Set(t.Context(), made, time.Hour, false); err != nil {
			t.Fatal(err)
		}
		c.awaits(x.want)
		if _, err := w.controls.Lift(t.Context(), []string{made.ID}, false); err != nil {
			t.Fatal(err)
		}
		c.awaits("shop token bucket")
	}
	w.limiter.SetRules(rulefiletest.Load(t, strings.ReplaceAll(rules, "rlqs: {weight_from: x-weight}", "rlqs: false")))
	c.awaits("shop abandon")
}

// TestDrain checks that assignments are renewed before streams end.
func TestDrain(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	c := w.open()
	c.report("edge", bucket("service", "shop"))
	c.awaits("shop token bucket")
	testkit.Eventually(t, "all is told", func() bool { n, _, _ := w.service.Counts(); return n.Assigned >= 1 })
	w.service.Drain()
	last := ""
	for got := c.next(); !strings.HasPrefix(got, "Unavailable"); got = c.next() {
		last = got
	}
	if last != "shop token bucket" {
		t.Errorf("the last message is %q", last)
	}
	if got := w.open().next(); got != "Unavailable: this server is about to stop" {
		t.Errorf("a new stream: %q", got)
	}
	w.service.Wait()
}

// TestOneCounter checks that assignments and requests share one counter, and that clients share by weight.
func TestOneCounter(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	for name, weight := range map[string]string{"light": "1", "heavy": "3"} {
		c := w.open("x-ratelimitd-client", name, "x-weight", weight)
		c.report("edge", bucket("service", "window"))
		c.awaits("window token bucket")
	}
	entries := []descriptors.Entry{{Key: []byte("service"), Value: []byte("window")}}
	state, err := w.limiter.Peek(context.WithoutCancel(t.Context()), "edge", entries)
	if err != nil {
		t.Fatal(err)
	}
	if left := state.Decision.Left; left >= 100_000 {
		t.Errorf("%d of 100000 are left, after two clients were assigned tokens", left)
	}
	all := w.service.Status(everything, 100)
	if len(all) != 1 || len(all[0].Holders) != 2 || all[0].Shares.Answer != "divided" {
		t.Fatalf("status: %+v", all)
	}
	for _, h := range all[0].Holders {
		if want := map[string]float64{"light": 1, "heavy": 1}[h.ID]; h.Weight != want || h.Share <= 0 { // the rule lacks weight_from
			t.Errorf("holder %+v", h)
		}
	}
}

// TestKeptIDs checks that other clients get only the entries of an ID that a client reports, without unchecked fields.
func TestKeptIDs(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	id := bucket("service", "shop")
	id.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 99, protowire.BytesType), strings.Repeat("x", 1000)))
	c := w.open()
	c.report("edge", id)
	m, err := c.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := m.GetBucketAction()[0].GetBucketId(); len(got.ProtoReflect().GetUnknown()) > 0 || got.GetBucket()["service"] != "shop" {
		t.Errorf("got the id %v", got)
	}
}

// TestHugeCounts checks that counts near the maximum do not overflow.
func TestHugeCounts(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	c := w.open()
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
	for range 3 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: bucket("service", "shop"), NumRequestsAllowed: math.MaxUint64, NumRequestsDenied: math.MaxUint64,
		})
	}
	if err := c.Send(m); err != nil {
		t.Fatal(err)
	}
	want := rlqs.Requests{Allowed: 3 << 40, Denied: 3 << 40}
	testkit.Eventually(t, "all is counted", func() bool { n, _, _ := w.service.Counts(); return n.Requests["edge"] == want })
}

// names returns the domains and the names of the holders of all buckets.
func (w *world) names() (names []string) {
	for _, b := range w.service.Status(everything, 100) {
		for _, h := range b.Holders {
			if h.State != "disconnected" {
				names = append(names, b.Domain+" "+h.ID)
			}
		}
	}
	slices.Sort(names)
	return names
}

// startTwoDomains starts a service with the same rules in two domains.
func startTwoDomains(t *testing.T, network, address string) *world {
	t.Helper()
	w := startOn(t, network, address, rlqs.Config{})
	other := strings.Replace(rules, "domain: edge", "domain: shop", 1)
	w.limiter.SetRules(rulefiletest.Load(t, rules, other))
	return w
}

// TestNames checks that a client has its name in each domain, and that a client of another connection with the same name gets another
// one.
func TestNames(t *testing.T) {
	t.Parallel()
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "socket")} {
		w := startTwoDomains(t, network, address)
		for _, domain := range []string{"edge", "shop", "shop"} {
			c := w.open("x-ratelimitd-client", "edge-1")
			c.report(domain, bucket("service", "shop"))
			c.awaits("shop token bucket")
			if domain == "shop" {
				w.connect()
			}
		}
		if got, want := w.names(), []string{"edge edge-1", "shop edge-1", "shop edge-1#3"}; !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", network, got, want)
		}
	}
}

// TestNewerStream checks that a client that opens another stream of the same domain on its connection keeps only that one. Clients that
// share a connection have separate streams, and so have clients without a name.
func TestNewerStream(t *testing.T) {
	t.Parallel()
	w := startTwoDomains(t, "tcp", "127.0.0.1:0")
	open := func(domain string, md ...string) *client {
		c := w.open(md...)
		c.report(domain, bucket("service", "shop"))
		c.awaits("shop token bucket")
		return c
	}
	older := open("edge", "x-ratelimitd-client", "edge-1")
	open("shop", "x-ratelimitd-client", "edge-1")
	open("edge", "x-ratelimitd-client", "edge-2")
	open("edge")
	open("edge")
	open("edge", "x-ratelimitd-client", "edge-1")
	older.awaits("Aborted: this connection has a newer stream of the same domain and client name")
	if got, want := w.names(), []string{"edge #4", "edge #5", "edge edge-1", "edge edge-2", "shop edge-1"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, n, _ := w.service.Counts(); n != 5 {
		t.Errorf("%d streams, want 5", n)
	}
}

// TestDoesNotRead checks that a client that never reads does not keep the service from ending.
func TestDoesNotRead(t *testing.T) {
	t.Parallel()
	w := start(t, rlqs.Config{})
	c := w.open()
	var ids []*rlqspb.BucketId
	for i := range 1000 {
		ids = append(ids, bucket("service", fmt.Sprint(strings.Repeat("long", 50), i)))
	}
	sent := func() uint64 { n, _, _ := w.service.Counts(); return n.Assigned }
	c.report("edge", ids...)
	var before uint64
	testkit.Eventually(t, "all is sent that a connection holds", func() bool {
		n := sent()
		full := n > 0 && n == before
		before = n
		time.Sleep(100 * time.Millisecond) // without sending anything
		return full
	})
	w.service.Drain()
	ended := make(chan struct{})
	go func() { w.service.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second): // before the maximum silence of a stream
		t.Error("the service has not ended")
	}
}
