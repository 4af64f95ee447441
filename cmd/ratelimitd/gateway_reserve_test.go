package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// streamRoute is the route of a policy whose only rule has two Distinct headers: the user, and x-stream-id.
const streamRoute = "httproute/default/llm/rule/0/match/0/llm_example_com"

// streamRules returns the rules of Envoy Gateway 1.9.1 for that policy: each header is a level, and the last one has the
// limit.
func streamRules(requests uint32) *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "default/eg/http", Domain: "default/eg/http", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: streamRoute, Value: streamRoute, Descriptors: []*ratelimitv3.RateLimitDescriptor{{
			Key: "rule-0-match-0", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
				Key: "rule-0-match-1", RateLimit: &ratelimitv3.RateLimitPolicy{Unit: year, RequestsPerUnit: requests},
			}},
		}},
	}}}
}

// stream makes a call like Envoy Gateway for a stream: the first one with 0 hits, and at its end the same with its
// tokens.
func stream(t *testing.T, c rlsv3.RateLimitServiceClient, user, id string, tokens uint64) bool {
	t.Helper()
	d := &rlcommonv3.RateLimitDescriptor{HitsAddend: wrapperspb.UInt64(tokens)}
	for _, e := range [][2]string{{streamRoute, streamRoute}, {"rule-0-match-0", user}, {"rule-0-match-1", id}} {
		d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: e[0], Value: e[1]})
	}
	r := &rlsv3.RateLimitRequest{Domain: "default/eg/http", Descriptors: []*rlcommonv3.RateLimitDescriptor{d}}
	answer, err := c.ShouldRateLimit(t.Context(), r)
	if err != nil {
		t.Error(err)
		return false
	}
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
}

// TestReserveUnderEnvoyGateway replays recorded calls of Envoy Gateway for streams with various ends, against its rules with an overlay
// that reserves, in memory and in Redis.
func TestReserveUnderEnvoyGateway(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]*redistest.Server{"memory": nil, "redis": redistest.Start(t)} {
		t.Run(name, func(t *testing.T) {
			d := startReservingGateway(t, db)
			t.Run("events", func(t *testing.T) { gatewayEvents(t, d) })
			t.Run("concurrent", func(t *testing.T) { gatewayStreams(t, d) })
			d.stop()
		})
	}
}

// startReservingGateway starts a server with rules from a control plane, and waits until the overlay applies.
func startReservingGateway(t *testing.T, db *redistest.Server) *daemon {
	t.Helper()
	g := newGateway(t)
	overlay := filepath.Join(t.TempDir(), "overlay.yaml")
	if err := os.WriteFile(overlay, []byte(`
domain: default/eg/*
descriptors:
  - key: httproute/default/llm/*
    value: "*"
    descriptors:
      - key: rule-0-match-0
        descriptors:
          - key: rule-0-match-1
            rate_limit: {reserve: {by: rule-0-match-1, ttl: 15m, estimate: 50}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"RULES_OVERLAY=" + overlay, "ADMIN=true"}
	if db != nil {
		env = append(env, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+db.Addr(), "REDIS_OP_TIMEOUT=10s")
	}
	d := startProcess(t, "", g.env(env...)...)
	g.send(streamRules(1000))
	d.ready()
	d.waits("DEBUG", "/rlconfig", "overlay: "+overlay)
	return d
}

// gatewayEvents replays a row for each event of a stream: the hits of its second call, if any, and the remaining tokens of its user,
// of 1,000.
func gatewayEvents(t *testing.T, d *daemon) {
	t.Helper()
	c := d.client()
	for i, x := range []struct {
		event string
		then  []int
		left  int
	}{
		{"200 with tokens", []int{30}, 970},
		{"200 with more tokens than the estimate", []int{70}, 930},
		{"200 with 0 tokens", []int{0}, 1000},
		{"200 or 503 without tokens", nil, 950},
		{"connection refused, or the client leaves before the headers", nil, 950},
		{"503 with tokens, or the client leaves during the body", []int{20}, 980},
		{"the call at the end of the stream, twice", []int{30, 30}, 970},
		{"two requests with one value", []int{0, 30, 20}, 950},
	} {
		user := fmt.Sprint("user", i)
		if !stream(t, c, user, user, 0) {
			t.Fatalf("%s: the first call is rejected", x.event)
		}
		for _, tokens := range x.then {
			stream(t, c, user, user, uint64(tokens))
		}
		if text := d.command("peek", "default/eg/http", streamRoute+"="+streamRoute+",rule-0-match-0="+user); !strings.Contains(text, fmt.Sprintf(": %d left", x.left)) {
			t.Errorf("%s: want %d left, and peek says\n%s", x.event, x.left, text)
		}
	}
}

// gatewayStreams runs forty concurrent streams of 50 tokens: twenty fit into 1,000. A rejected stream makes no call at its end.
func gatewayStreams(t *testing.T, d *daemon) {
	t.Helper()
	c := d.client()
	var passed atomic.Int64
	var wg, began sync.WaitGroup
	began.Add(40)
	for i := range 40 {
		wg.Go(func() {
			id := fmt.Sprint("stream", i)
			ok := stream(t, c, "all", id, 0)
			began.Done()
			began.Wait()
			if ok {
				passed.Add(1)
				stream(t, c, "all", id, 50)
			}
		})
	}
	wg.Wait()
	if n := passed.Load(); n != 20 {
		t.Errorf("%d streams of 50 tokens passed, want 20 within 1,000", n)
	}
	if stream(t, c, "all", "one more", 0) {
		t.Error("one more passes")
	}
}
