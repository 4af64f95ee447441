package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// asBytes is a codec for messages that are bytes, so that a flood costs its sender little. Answers are not looked at.
type asBytes struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (asBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (asBytes) Unmarshal(mem.BufferSlice, any) error { return nil }

// flood asks a server for more than it can decide, until the test ends.
type flood struct{ asked, answered atomic.Int64 }

// startFlood makes callers, each over a connection of its own, keep a number of calls of many descriptors in flight.
func startFlood(t *testing.T, d *daemon, connections, inFlight, descriptors int) *flood {
	t.Helper()
	request := &rlsv3.RateLimitRequest{Domain: "shop"}
	for i := range descriptors {
		request.Descriptors = append(request.Descriptors, descriptorsOf(fmt.Sprintf("user=%d", i))...)
	}
	message, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	f := new(flood)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	codec := grpc.ForceCodecV2(asBytes{encoding.GetCodecV2("proto")})
	for range connections {
		conn := d.dial()
		for range inFlight {
			wg.Go(func() {
				for ctx.Err() == nil {
					once, cancel := context.WithTimeout(ctx, giveUp)
					f.asked.Add(1)
					if conn.Invoke(once, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, message, nil, codec) == nil {
						f.answered.Add(1)
					}
					cancel()
				}
			})
		}
	}
	return f
}

// TestProbesInASurge: health, the admin API and reflection are never shed, and they, /livez and /readyz answer within a
// second, each time, when a server on one processor is offered several times what it can decide.
func TestProbesInASurge(t *testing.T) {
	testkit.NotShort(t)
	undisturbed(t, probesInASurge)
}

func probesInASurge(t *testing.T) round {
	t.Helper()
	const each, within = 30, time.Second
	d := startProcess(t, endlessRules, "GOMAXPROCS=1", "ADMIN=true", "GRPC_REFLECTION=true")
	shareProcessor(t, d.Process)
	f := startFlood(t, d, 8, 48, 96)
	d.until("requests are shed", func() bool { return d.shed() > 1000 })
	before, asked, answered, forOthers := d.shed(), f.asked.Load(), f.answered.Load(), proc.ForOthers(d.Process.Process)
	var wg sync.WaitGroup
	var late atomic.Int64
	var mu sync.Mutex
	var slowestOf []time.Duration // by probe
	for name, probe := range d.probes() {
		wg.Go(func() {
			slowest := time.Duration(0)
			for range each {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				begin := time.Now()
				err := probe(ctx)
				took := time.Since(begin)
				cancel()
				if slowest = max(slowest, took); took > within {
					late.Add(1)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				time.Sleep(within / 10)
			}
			t.Logf("%s: the slowest of %d answers took %v", name, each, slowest.Round(time.Millisecond))
			mu.Lock()
			slowestOf = append(slowestOf, slowest)
			mu.Unlock()
		})
	}
	wg.Wait()
	others := forOthers()
	shed, asked, answered := d.shed()-before, f.asked.Load()-asked, f.answered.Load()-answered
	t.Logf("meanwhile %d requests were made, %d of them decided, and %g shed; %.0f %% of all processors worked for others", asked, answered, shed, 100*others)
	if shed == 0 {
		t.Error("nothing was shed: that is no surge")
	}
	alike := slices.Max(slowestOf) < 4*slices.Min(slowestOf) // who takes the processors delays all of them
	return round{
		held: late.Load() == 0, disturbed: others > tooMuchForOthers && alike,
		seen: fmt.Sprintf("%d answers took more than %v", late.Load(), within),
	}
}

// probes ask whether a server lives, and what must never be shed.
func (d *daemon) probes() map[string]func(context.Context) error {
	conn := d.dial()
	page := func(path string) func(context.Context) error {
		return func(ctx context.Context) error {
			status, text, err := testkit.Fetch(ctx, http.MethodGet, "http://"+d.At["HTTP"]+path, "")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%d, %s", status, text)
			}
			return err
		}
	}
	return map[string]func(context.Context) error{
		"/livez": page("/livez"), "/readyz": page("/readyz"), "/healthcheck": page("/healthcheck"),
		"health": func(ctx context.Context) error {
			answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
			if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				err = fmt.Errorf("%v", answer)
			}
			return err
		},
		"the list of rules": func(ctx context.Context) error {
			_, err := adminv1.NewAdminServiceClient(conn).ListRules(ctx, &adminv1.ListRulesRequest{})
			return err
		},
		"reflection": func(ctx context.Context) error {
			stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
			if err != nil {
				return err
			}
			if err := stream.Send(&reflectionpb.ServerReflectionRequest{
				MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
			}); err != nil {
				return err
			}
			_, err = stream.Recv()
			return err
		},
	}
}
