package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const hostileQuotaRules = `
domain: shop
descriptors:
- key: made_up
  rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket, rlqs: true}
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4294967295}
`

// quotaReport is a report of so many buckets, each with a request.
func quotaReport(name string, buckets int) *rlqspb.RateLimitQuotaUsageReports {
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "shop"}
	for i := range buckets {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqspb.BucketId{Bucket: map[string]string{"made_up": fmt.Sprint(name, i)}}, NumRequestsAllowed: 1,
		})
	}
	return m
}

// attack repeats run on streams of several connections until stop is called.
func (d *daemon) attack(conns, streams int, run func(ctx context.Context, conn *grpc.ClientConn, n int)) (stop func()) {
	d.t.Helper()
	ctx, cancel := context.WithCancel(d.t.Context())
	var all sync.WaitGroup
	var n atomic.Int64
	for range conns {
		conn := d.from("127.0.0.1")
		for range streams {
			all.Go(func() {
				for ctx.Err() == nil {
					run(ctx, conn, int(n.Add(1)))
				}
			})
		}
	}
	return func() { cancel(); all.Wait() }
}

// TestG51_SameBuckets: one address opens 128 streams that report the same 1,000 buckets.
func TestG51_SameBuckets(t *testing.T) {
	t.Parallel()
	d := startProcess(t, hostileQuotaRules, "BACKEND_TYPE=memory", "RLQS_MEMORY_IN_BYTES=33554432")
	report := quotaReport("", 1000)
	stop := d.attack(8, 16, func(ctx context.Context, conn *grpc.ClientConn, _ int) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // Envoy's interval
		defer cancel()
		_ = quotaStream(ctx, conn, report)
		<-ctx.Done()
	})
	defer stop()
	conn, answered, most := d.from("127.0.0.2"), 0, 0
	for i := range 7 {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if err := quotaStream(ctx, conn, quotaReport(fmt.Sprint("innocent", i), 1)); err == nil {
			answered++
		} else {
			t.Log(err)
		}
		cancel()
		time.Sleep(500 * time.Millisecond)
		most = max(most, d.Resident(t))
	}
	if answered < 7 || most > 400<<20 { // 32 MB of buckets, the calls, and garbage on a busy machine
		t.Errorf("%d of 7 clients of another address were answered, with %d MB", answered, most>>20)
	}
}

// TestG51_NewBuckets: one address repeatedly opens 16 streams, reports 900 new buckets on each, and closes them.
func TestG51_NewBuckets(t *testing.T) {
	t.Parallel()
	d := startProcess(t, hostileQuotaRules, "BACKEND_TYPE=memory")
	client := rlsv3.NewRateLimitServiceClient(d.from("127.0.0.2"))
	late := func() (share float64) { // of calls
		const calls = 300
		n := 0
		for range calls {
			begin := time.Now()
			_, err := client.ShouldRateLimit(t.Context(), request("user", "ann"))
			if err != nil || time.Since(begin) > 20*time.Millisecond {
				n++
			}
			time.Sleep(10 * time.Millisecond)
		}
		return float64(n) / calls
	}
	before := late()
	stop := d.attack(1, 16, func(ctx context.Context, conn *grpc.ClientConn, n int) {
		ctx, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		defer cancel()
		_ = quotaStream(ctx, conn, quotaReport(fmt.Sprint(n, "-"), 900))
		<-ctx.Done()
	})
	defer stop()
	during := late()
	for try := 0; try < 5 && during > before+0.25; try++ { // other processes do not disturb every attempt
		during = late()
	}
	if during > before+0.25 || d.Resident(t) > 400<<20 {
		t.Errorf("%.0f %% of calls took more than 20 ms, before %.0f %%, with %d MB", 100*during, 100*before, d.Resident(t)>>20)
	}
	if n := d.metric("ratelimitd_rlqs_buckets"); n == 0 || n > 9000 {
		t.Errorf("%v buckets, want some", n)
	}
}
