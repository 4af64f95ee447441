package rlqs_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// edges is a service with Envoys on virtual time that share one bucket.
type edges struct {
	*testing.T

	limiter  *limiter.Limiter
	controls *controls.Controls
	service  *rlqs.Service
	all      []*edge
	open     sync.WaitGroup
}

// edge is one of these Envoys.
type edge struct {
	id     *rlqspb.BucketId
	demand float64 // requests per second
	rest   float64
	ticks  int

	mu     sync.Mutex
	bucket sharestest.Bucket

	grpc.ServerStream
	ctx     context.Context //nolint:containedctx // streams contain a context
	cancel  context.CancelFunc
	reports chan *rlqspb.RateLimitQuotaUsageReports
}

func (e *edge) Context() context.Context { return e.ctx }

func (e *edge) Recv() (*rlqspb.RateLimitQuotaUsageReports, error) {
	select {
	case m := <-e.reports:
		return m, nil
	case <-e.ctx.Done():
		return nil, e.ctx.Err()
	}
}

func (e *edge) Send(m *rlqspb.RateLimitQuotaResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range m.GetBucketAction() {
		e.bucket.Receive(shares.Micros(time.Now().UnixMicro()), rlqstest.Assignment(a))
	}
	return nil
}

// startEdges starts a service with rules, and one Envoy per demand, which share the bucket with an ID.
func startEdges(t *testing.T, rules string, id *rlqspb.BucketId, demands ...float64) *edges {
	t.Helper()
	w := &edges{T: t, controls: controls.New(controls.Config{})}
	w.limiter = limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Overrides: w.controls.Overrides()})
	w.limiter.SetRules(rulefiletest.Load(t, rules))
	w.service = rlqs.New(w.limiter, rlqs.Config{})
	for i, d := range demands {
		md := metadata.Pairs("x-ratelimitd-client", fmt.Sprint("edge-", i))
		ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), md))
		e := &edge{id: id, demand: d, reports: make(chan *rlqspb.RateLimitQuotaUsageReports, 10), ctx: ctx, cancel: cancel}
		w.all = append(w.all, e)
		w.open.Go(func() { _ = w.service.StreamRateLimitQuotas(e) })
	}
	return w
}

// end ends the service.
func (w *edges) end() {
	for _, e := range w.all {
		e.cancel()
	}
	w.open.Wait()
	w.service.Drain()
	w.service.Wait()
}

// report reports the usage since the last report.
func (e *edge) report() {
	e.mu.Lock()
	u := e.bucket.Report()
	e.mu.Unlock()
	m := &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: e.id, TimeElapsed: new(durationpb.Duration), NumRequestsAllowed: u.Allowed, NumRequestsDenied: u.Denied,
	}
	if e.ticks > 0 {
		m.TimeElapsed.Seconds = 5
	}
	e.reports <- &rlqspb.RateLimitQuotaUsageReports{Domain: "edge", BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{m}}
}

// step simulates a fraction of a second.
func (e *edge) step(parts int) (admitted, denied uint64) {
	e.rest += e.demand / float64(parts)
	n := uint64(e.rest + 1e-9)
	e.rest -= float64(n)
	e.mu.Lock()
	admitted = e.bucket.Request(shares.Micros(time.Now().UnixMicro()), n)
	e.mu.Unlock()
	if e.ticks%(5*parts) == 0 {
		e.report()
	}
	e.ticks++
	return admitted, n - admitted
}

// play simulates seconds. It returns the requests admitted in each, and the total of denied ones.
func (w *edges) play(seconds int) (each []uint64, denied uint64) {
	const parts = 40
	for range seconds {
		each = append(each, 0)
		for range parts {
			for _, e := range w.all {
				a, d := e.step(parts)
				each[len(each)-1] += a
				denied += d
			}
			time.Sleep(time.Second / parts)
		}
	}
	return each, denied
}

// uses checks that the number of requests admitted in each second is within bounds.
func (w *edges) uses(what string, seconds int, least, most uint64) {
	w.Helper()
	if each, _ := w.play(seconds); slices.Min(each) < least || slices.Max(each) > most {
		w.Errorf("%s: admitted each second %d, want %d to %d", what, each, least, most)
	}
}

// set puts a control in force on the bucket, and returns a function that lifts it.
func (w *edges) set(c *override.Control) (lift func()) {
	w.Helper()
	c.Domain = "edge"
	for k, v := range w.all[0].id.GetBucket() {
		c.Entries = append(c.Entries, override.Entry{Key: k, Value: v})
	}
	if _, err := w.controls.Set(w.Context(), c, time.Hour, false); err != nil {
		w.Fatal(err)
	}
	return func() {
		if _, err := w.controls.Lift(w.Context(), []string{c.ID}, false); err != nil {
			w.Fatal(err)
		}
	}
}

// TestLifted checks that after a block or an allow is lifted, clients have the whole limit from the next second on, and those below the
// limit are denied nothing.
func TestLifted(t *testing.T) {
	t.Parallel()
	const rules = "{domain: edge, descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 100, burst: 200, algorithm: token_bucket, rlqs: true}}]}"
	for _, kind := range []override.Kind{override.Block, override.Allow} {
		for _, demand := range []float64{45, 80} {
			synctest.Test(t, func(t *testing.T) {
				w := startEdges(t, rules, bucket("a", "x"), demand, demand)
				w.play(12)
				lift := w.set(&override.Control{Kind: kind})
				w.play(12)
				lift()
				w.play(2)
				each, denied := w.play(20)
				if demand == 45 && denied > 0 || demand == 80 && slices.Min(each) < 95 {
					t.Errorf("%v, %.0f requests a second each: admitted %d, %d were denied", kind, demand, each, denied)
				}
				w.end()
			})
		}
	}
}

// TestLiftedLarge checks that after a larger limit is lifted, unused hits that were paid for under it do not keep clients below the
// limit.
func TestLiftedLarge(t *testing.T) {
	t.Parallel()
	const rules = "{domain: edge, descriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 100, burst: 200, algorithm: token_bucket, rlqs: true}}]}"
	for _, to := range []descriptors.Override{
		{RequestsPerUnit: 12_000, Unit: descriptors.Minute},
		{RequestsPerUnit: 60_000, Unit: descriptors.Minute},
		{RequestsPerUnit: 360_000, Unit: descriptors.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := startEdges(t, rules, bucket("a", "x"), 45, 45)
			w.play(10)
			lift := w.set(&override.Control{Kind: override.Limit, To: to})
			w.play(20)
			lift()
			w.play(2)
			if each, denied := w.play(20); denied > 0 {
				t.Errorf("after %d in a %v: %d were denied: admitted each second %d", to.RequestsPerUnit, to.Unit, denied, each)
			}
			w.end()
		})
	}
}

// TestOtherUnit checks that a limit in another unit is divided completely, even if its window is too short for strict mode.
func TestOtherUnit(t *testing.T) {
	t.Parallel()
	for rule, least := range map[string]uint64{
		"unit: minute, requests_per_unit: 60000, rlqs: true":                                    28_500,
		"unit: minute, requests_per_unit: 60000, algorithm: sliding_window, rlqs: true":         24_000, // counts hits that are leased together as consumed together
		"unit: minute, requests_per_unit: 60000, algorithm: token_bucket, rlqs: true":           28_500,
		"unit: minute, requests_per_unit: 60000, algorithm: token_bucket, rlqs: {mode: strict}": 28_500,
	} {
		synctest.Test(t, func(t *testing.T) {
			w := startEdges(t, "{domain: edge, descriptors: [{key: a, rate_limit: {"+rule+"}}]}", bucket("a", "x"), 800, 800)
			w.set(&override.Control{Kind: override.Limit, To: descriptors.Override{RequestsPerUnit: 1000, Unit: descriptors.Second}})
			w.play(15)
			sum := uint64(0)
			each, _ := w.play(30)
			for _, n := range each {
				sum += n
			}
			if sum < least || sum > 31_500 {
				t.Errorf("%s: %d were admitted in 30 s, want 30000: %d", rule, sum, each)
			}
			w.end()
		})
	}
}

// TestAlwaysAllowed checks that an Envoy that denies without an assignment gets ALLOW_ALL from an allow, and on an unlimited plan next to
// one with rlqs.
func TestAlwaysAllowed(t *testing.T) {
	t.Parallel()
	const rules = `{domain: edge, descriptors: [{key: a, plan_of: a, plans: {
		some: {unit: hour, requests_per_unit: 100000, rlqs: true}, default: {unlimited: true}}}]}`
	for name, control := range map[string]bool{"an unlimited plan": false, "an allow": true} {
		synctest.Test(t, func(t *testing.T) {
			w := startEdges(t, rules, bucket("a", "x"), 50)
			w.all[0].bucket.NoAssignment = sharestest.DenyAll
			if control {
				w.set(&override.Control{Kind: override.Allow})
			}
			w.play(2)
			w.uses(name, 30, 50, 50)
			w.end()
		})
	}
}

// TestGrant checks that hits granted by an operator in a consumed window reach Envoys within an interval.
func TestGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startEdges(t, "{domain: edge, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 10000, rlqs: true}}]}", bucket("a", "x"), 300, 300)
		w.play(400)
		w.uses("a day that is used up", 10, 0, 5)
		entries := []descriptors.Entry{{Key: []byte("a"), Value: []byte("x")}}
		if _, _, err := w.limiter.Grant(t.Context(), "edge", entries, 900, false); err != nil {
			t.Fatal(err)
		}
		if each, _ := w.play(5); slices.Max(each) < 20 {
			t.Errorf("after a grant of 900 hits %d were admitted", each)
		}
		w.end()
	})
}

// TestAlignFirst checks that a window that begins with its first hit is divided too.
func TestAlignFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startEdges(t, "{domain: edge, descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 6000, align: first, rlqs: true}}]}",
			bucket("a", "x"), 40)
		w.all[0].bucket.NoAssignment = sharestest.DenyAll
		w.play(12)
		w.uses("a window that begins with the first hit", 180, 20, 80)
		w.end()
	})
}

// TestBegins checks that unused hits of the first interval's shares come back, so that clients below the limit of a long window are
// denied nothing in it.
func TestBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := startEdges(t, "{domain: edge, descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 6000, algorithm: sliding_window, rlqs: true}}]}",
			bucket("a", "x"), 45, 45)
		if each, denied := w.play(60); denied > 0 {
			t.Errorf("%d were denied: admitted each second %d", denied, each)
		}
		w.end()
	})
}
