package rlqs_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

var fleet = flag.Bool("fleet", false, "measure what 1,000 streams with 100 buckets each cost")

// fleetStream is a stream without a connection, which decodes and encodes like gRPC.
type fleetStream struct {
	grpc.ServerStream

	ctx     context.Context //nolint:containedctx // streams contain a context
	reports <-chan []byte
	count   *fleetCount
}

// fleetCount counts the messages of streams.
type fleetCount struct {
	reports, actions atomic.Int64
	mu               sync.Mutex
	answers          []*rlqspb.RateLimitQuotaResponse // a sample of those sent
}

func (s *fleetStream) Context() context.Context { return s.ctx }

func (s *fleetStream) Recv() (*rlqspb.RateLimitQuotaUsageReports, error) {
	text, ok := <-s.reports
	if !ok {
		return nil, io.EOF
	}
	m := new(rlqspb.RateLimitQuotaUsageReports)
	s.count.reports.Add(1)
	return m, proto.Unmarshal(text, m)
}

func (s *fleetStream) Send(m *rlqspb.RateLimitQuotaResponse) error {
	_, err := proto.Marshal(m)
	s.count.actions.Add(int64(len(m.GetBucketAction())))
	s.count.mu.Lock()
	defer s.count.mu.Unlock()
	if len(s.count.answers) < 1000 {
		s.count.answers = append(s.count.answers, m)
	}
	return err
}

// spent returns the processor time of this process.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// fleetReport returns a report of 100 buckets, all of which deny some requests.
func fleetReport(t *testing.T, stream, tick int) []byte {
	t.Helper()
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
	for i := range 100 {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId:           bucket("service", fmt.Sprint("service-", i)),
			TimeElapsed:        durationpb.New(5 * time.Second),
			NumRequestsAllowed: uint64(40 + (stream+tick+i)%20),
			NumRequestsDenied:  uint64((stream + i) % 30),
		})
	}
	text, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFleet measures the cost of 1,000 streams with the same 100 buckets for a minute, and compares it with that of decoding their
// reports and encoding the answers. Without -fleet, there are 100 streams, and the bound is looser.
func TestFleet(t *testing.T) {
	streams, ticks, asked := 100, 8, 5.0
	if *fleet {
		streams, ticks, asked = 1000, 24, 3.0
	}
	var texts [20][]byte
	for i := range texts {
		texts[i] = fleetReport(t, i, i)
	}
	count := &fleetCount{}
	var most uint64
	took := time.Duration(0)
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Overrides: controls.New(controls.Config{}).Overrides()})
		l.SetRules(rulefiletest.Load(t, `
domain: edge
descriptors:
- key: service
  rate_limit: {unit: second, requests_per_unit: 10000, algorithm: token_bucket, burst: 20000, rlqs: true}
`))
		service := rlqs.New(l, rlqs.Config{})
		var open sync.WaitGroup
		var reports []chan []byte
		for i := range streams {
			md := metadata.Pairs("x-ratelimitd-client", fmt.Sprint("edge-", i))
			ctx, cancel := context.WithCancel(metadata.NewIncomingContext(t.Context(), md))
			defer cancel()
			reports = append(reports, make(chan []byte, 1))
			stream := &fleetStream{ctx: ctx, reports: reports[i], count: count}
			open.Go(func() { _ = service.StreamRateLimitQuotas(stream) })
		}
		began := time.Duration(0)
		for tick := range ticks {
			if tick == ticks/2 { // all clients have joined
				began = spent(t)
				count.reports.Store(0)
				count.actions.Store(0)
			}
			for i := range streams {
				reports[i] <- texts[(i+tick)%len(texts)]
				time.Sleep(5 * time.Second / time.Duration(streams))
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse+m.StackInuse)
		}
		took = spent(t) - began
		for _, r := range reports {
			close(r)
		}
		open.Wait()
		service.Drain()
		service.Wait()
	})
	alone := protobufAlone(t, texts[:], count)
	ratio := float64(took) / float64(alone)
	t.Logf("%d reports of 100 buckets, %d actions: %v, alone %v, ratio %.2f; %d MB at most",
		count.reports.Load(), count.actions.Load(), took, alone, ratio, most>>20)
	if ratio > asked || most > 200<<20 {
		t.Errorf("want a ratio of %v at most, and 200 MB", asked)
	}
}

// protobufAlone returns the cost of decoding as many reports and encoding as many actions as were counted.
func protobufAlone(t *testing.T, texts [][]byte, c *fleetCount) time.Duration {
	t.Helper()
	for i, m := range c.answers { // decode like a client, because the service encodes IDs only once
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		c.answers[i] = new(rlqspb.RateLimitQuotaResponse)
		if err := proto.Unmarshal(text, c.answers[i]); err != nil {
			t.Fatal(err)
		}
	}
	began := spent(t)
	for i := range int(c.reports.Load()) {
		if err := proto.Unmarshal(texts[i%len(texts)], new(rlqspb.RateLimitQuotaUsageReports)); err != nil {
			t.Fatal(err)
		}
	}
	for i, left := 0, int(c.actions.Load()); left > 0; i++ {
		m := c.answers[i%len(c.answers)]
		if _, err := proto.Marshal(m); err != nil {
			t.Fatal(err)
		}
		left -= len(m.GetBucketAction())
	}
	return spent(t) - began
}
