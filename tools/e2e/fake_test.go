package e2e

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// scriptedStep is what a scripted service says, that long after the first report.
type scriptedStep struct {
	after time.Duration
	shares.Assignment
	said shares.Micros // when it was said
}

// scriptedService says the same to any Envoy.
type scriptedService struct {
	rlqspb.UnimplementedRateLimitQuotaServiceServer

	steps []scriptedStep
	ended chan struct{}
	once  sync.Once
}

func micros(t time.Time) shares.Micros { return shares.Micros(t.UnixMicro()) }

// StreamRateLimitQuotas implements the service.
func (s *scriptedService) StreamRateLimitQuotas(call rlqspb.RateLimitQuotaService_StreamRateLimitQuotasServer) error {
	first, err := call.Recv()
	if err != nil {
		return err
	}
	go func() { // reads on, so that Envoy is not held up
		for err == nil {
			_, err = call.Recv()
		}
	}()
	begin := time.Now()
	for i := range s.steps {
		step := &s.steps[i]
		select {
		case <-call.Context().Done():
			return call.Context().Err()
		case <-time.After(time.Until(begin.Add(step.after))):
		}
		step.said = micros(time.Now())
		action := scriptedAction(first.GetBucketQuotaUsages()[0].GetBucketId(), &step.Assignment)
		if err := call.Send(&rlqspb.RateLimitQuotaResponse{BucketAction: []*rlqspb.RateLimitQuotaResponse_BucketAction{action}}); err != nil {
			return err
		}
	}
	s.once.Do(func() { close(s.ended) })
	<-call.Context().Done()
	return nil
}

func scriptedAction(id *rlqspb.BucketId, a *shares.Assignment) *rlqspb.RateLimitQuotaResponse_BucketAction {
	if a.Kind == shares.Abandon {
		return &rlqspb.RateLimitQuotaResponse_BucketAction{BucketId: id, BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction_{
			AbandonAction: &rlqspb.RateLimitQuotaResponse_BucketAction_AbandonAction{},
		}}
	}
	strategy := &typepb.RateLimitStrategy{Strategy: &typepb.RateLimitStrategy_BlanketRule_{BlanketRule: typepb.RateLimitStrategy_DENY_ALL}}
	if a.Kind == shares.TokenBucket {
		strategy.Strategy = &typepb.RateLimitStrategy_TokenBucket{TokenBucket: &typepb.TokenBucket{
			MaxTokens: a.MaxTokens, TokensPerFill: wrapperspb.UInt32(a.TokensPerFill), FillInterval: &durationpb.Duration{Seconds: int64(a.FillInterval)},
		}}
	}
	return &rlqspb.RateLimitQuotaResponse_BucketAction{BucketId: id, BucketAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{
		QuotaAssignmentAction: &rlqspb.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
			AssignmentTimeToLive: &durationpb.Duration{Seconds: int64(a.TTL)}, RateLimitStrategy: strategy,
		},
	}}
}

// scriptedSteps have what the simulations rely on: smooth refill over any interval, the fill ratio that is kept, full buckets after
// a denial, a lapse and an abandon.
func scriptedSteps() []scriptedStep {
	bucket := func(most, fill, interval, ttl uint32) shares.Assignment {
		return shares.Assignment{MaxTokens: most, TokensPerFill: fill, FillInterval: interval, TTL: ttl}
	}
	return []scriptedStep{
		{after: 0, Assignment: bucket(10, 5, 1, 60)},
		{after: 6 * time.Second, Assignment: bucket(2, 18_000, 3600, 60)},
		{after: 12 * time.Second, Assignment: bucket(10, 180_000, 3600, 60)},
		{after: 18 * time.Second, Assignment: shares.Assignment{Kind: shares.DenyAll, TTL: 60}},
		{after: 20 * time.Second, Assignment: bucket(20, 36_000, 3600, 4)}, // 4 s later it lapses
		{after: 27 * time.Second, Assignment: bucket(300, 108_000, 3600, 60)},
		{after: 28 * time.Second, Assignment: bucket(150, 108_000, 3600, 60)},
		{after: 34 * time.Second, Assignment: shares.Assignment{Kind: shares.Abandon}},
		{after: 36 * time.Second, Assignment: bucket(5, 20, 1, 60)},
		{after: 42 * time.Second, Assignment: shares.Assignment{Kind: shares.DenyAll, TTL: 60}},
	}
}

// asked is a request, and whether it passed.
type asked struct {
	at     shares.Micros
	passed bool
}

// mirrored has Envoy and the fake Envoy of the simulations decide the same requests under the same assignments.
func mirrored(w *world) {
	s := &scriptedService{steps: scriptedSteps(), ended: make(chan struct{})}
	p := w.front(setup{example: "envoy-rlqs"}, w.upstream(hello), serveScripted(w, s))
	var (
		mu       sync.Mutex
		requests []asked
		open     sync.WaitGroup
	)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-s.ended:
			over = true
		case at := <-tick.C:
			open.Go(func() {
				a := w.ask(p, "/", "ann")
				mu.Lock()
				defer mu.Unlock()
				requests = append(requests, asked{micros(at.Add(a.took / 2)), a.status == http.StatusOK})
			})
		}
	}
	open.Wait()
	slices.SortFunc(requests, func(a, b asked) int { return int(a.at - b.at) })
	passed, fake := make([]int, len(s.steps)), make([]int, len(s.steps))
	bucket := sharestest.Bucket{} // like the example's, it allows what it has no assignment for
	step := -1
	for _, r := range requests {
		for step+1 < len(s.steps) && s.steps[step+1].said <= r.at {
			step++
			bucket.Receive(r.at, s.steps[step].Assignment)
		}
		if step < 0 || step == len(s.steps)-1 {
			continue
		}
		fake[step] += int(bucket.Request(r.at, 1))
		if r.passed {
			passed[step]++
		}
	}
	var said []string
	good, sum, off := true, 0, 0
	for i := range s.steps[:len(s.steps)-1] {
		apart := max(passed[i], fake[i]) - min(passed[i], fake[i])
		good = good && (apart <= 10 || 50*apart <= passed[i]) // 10 requests come in 100 ms, which a message may take on a busy machine
		sum, off = sum+passed[i], off+passed[i]-fake[i]
		said = append(said, fmt.Sprintf("%d/%d", passed[i], fake[i]))
	}
	w.got(good && 50*max(off, -off) <= sum, "of %d requests Envoy/the fake let pass, by assignment: %s", len(requests), strings.Join(said, ", "))
}

// serveScripted serves, as healthy as the example asks for, and returns its address.
func serveScripted(w *world, s *scriptedService) string {
	w.Helper()
	l, err := new(net.ListenConfig).Listen(w.Context(), "tcp", "127.0.0.1:0")
	testkit.Check(w, err)
	server, healthy := grpc.NewServer(), health.NewServer()
	healthy.SetServingStatus("ratelimit", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, healthy)
	rlqspb.RegisterRateLimitQuotaServiceServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	w.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			w.Error(err)
		}
	})
	return l.Addr().String()
}
