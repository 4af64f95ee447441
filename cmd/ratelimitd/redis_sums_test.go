package main

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

func descriptorsOf(texts ...string) (all []*rlcommonv3.RateLimitDescriptor) {
	for _, text := range texts {
		all = append(all, descriptorOf(text))
	}
	return all
}

// rush makes clients send calls concurrently, alternating between servers, and returns the remaining number of each
// admitted call.
func rush(t *testing.T, servers []rlsv3.RateLimitServiceClient, r *rlsv3.RateLimitRequest, clients, calls int) []uint32 {
	t.Helper()
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		remaining []uint32
		sent      atomic.Int64
	)
	for c := range clients {
		wg.Go(func() {
			for sent.Add(1) <= int64(calls) {
				answer, err := servers[c%len(servers)].ShouldRateLimit(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				if answer.GetOverallCode() == rlsv3.RateLimitResponse_OK {
					mu.Lock()
					remaining = append(remaining, answer.GetStatuses()[0].GetLimitRemaining())
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return remaining
}

// TestLadder: three servers share counters of 1,000. Of ladderCalls calls, exactly 1,000 are admitted, with different
// remaining numbers.
func TestLadder(t *testing.T) {
	t.Parallel()
	const limit, clients = 1000, 32
	db := redistest.Start(t)
	rules := `
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: sliding_window
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_window}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket}
  - key: sliding_log
    rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_log}
  - key: concurrency
    rate_limit: {unit: day, requests_per_unit: 1000, algorithm: concurrency}
`
	var servers []rlsv3.RateLimitServiceClient
	for range 3 {
		d := startDaemon(t, db, rules, "REDIS_OP_TIMEOUT=10s", "NEAR_CACHE_LEASES=false")
		d.ready()
		servers = append(servers, d.client())
	}
	for _, algorithm := range []string{"fixed_window", "token_bucket", "sliding_window", "sliding_log", "concurrency"} {
		t.Run(algorithm, func(t *testing.T) {
			remaining := rush(t, servers, request(algorithm, t.Name()), clients, ladderCalls)
			slices.Sort(remaining)
			if len(remaining) != limit {
				t.Fatalf("%d were admitted, want %d", len(remaining), limit)
			}
			for i, left := range remaining {
				if left != uint32(i) {
					t.Fatalf("what remains is not 0 to %d, each once: number %d is %d", limit-1, i, left)
				}
			}
		})
	}
}

// TestKeyFormatLadder is TestLadder with the reference's keys.
func TestKeyFormatLadder(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	var servers []rlsv3.RateLimitServiceClient
	for range 2 {
		d := startDaemon(t, db, "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: year, requests_per_unit: 100}\n",
			"REDIS_OP_TIMEOUT=10s", "REDIS_KEY_FORMAT=reference")
		d.ready()
		servers = append(servers, d.client())
	}
	remaining := rush(t, servers, request("user", "ann"), 10, 1000)
	slices.Sort(remaining)
	var want []uint32
	for i := range uint32(100) {
		want = append(want, i)
	}
	if fmt.Sprint(remaining) != fmt.Sprint(want) {
		t.Fatalf("what remains is %d, want 0 to 99, each once", remaining)
	}
	if n := db.CLI("DBSIZE"); n != "1" {
		t.Fatalf("there are %s keys, want one", n)
	}
}
