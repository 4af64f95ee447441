package e2e

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

func surges() (all []example) {
	for _, deny := range []bool{false, true} {
		want := "of a user who has nothing left, those alone pass whose call failed"
		if deny {
			want = "of a user who has nothing left, none pass"
		}
		all = append(all, example{
			name: "3 × what the server can take, " + mode(deny), want: want + "; each request is answered; limits hold again afterwards",
			effort: whole, peer: true, play: func(w *world) { w.surge(deny) },
		})
	}
	return all
}

// raw is a codec of calls that are encoded already, and whose answers no one reads.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (raw) Unmarshal([]byte, any) error   { return nil }
func (raw) Name() string                  { return "proto" }

// noise are calls of others to the same server, which cost it more than they cost their caller.
type noise struct {
	conns []*grpc.ClientConn
	call  []byte
	n     atomic.Int64
	made  atomic.Int64
}

func (w *world) noise(s *service) *noise {
	w.Helper()
	const descriptors = 96
	r := &rlsv3.RateLimitRequest{Domain: "edge"}
	for i := range descriptors {
		r.Descriptors = append(r.Descriptors, &rlcommonv3.RateLimitDescriptor{
			Entries: []*rlcommonv3.RateLimitDescriptor_Entry{{Key: "noise", Value: fmt.Sprint("client", i)}},
		})
	}
	z := new(noise)
	var err error
	if z.call, err = proto.Marshal(r); err != nil {
		w.Fatal(err)
	}
	for range 4 {
		conn, err := grpc.NewClient(s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		testkit.Check(w, err)
		w.Cleanup(func() { conn.Close() })
		z.conns = append(z.conns, conn)
	}
	return z
}

// one makes a call, and counts it if it is answered in time.
func (z *noise) one(ctx context.Context, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := z.conns[z.made.Add(1)%int64(len(z.conns))]
	if conn.Invoke(ctx, rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, z.call, nil, grpc.ForceCodec(raw{})) == nil {
		z.n.Add(1)
	}
}

// peak returns how many calls the server answers in a second, if the next come when the last are answered.
func (z *noise) peak(ctx context.Context) float64 {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	begin := time.Now()
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for ctx.Err() == nil {
				z.one(ctx, time.Second)
			}
		})
	}
	wg.Wait()
	return float64(z.n.Load()) / time.Since(begin).Seconds()
}

// rate makes calls at an even rate, whether they are answered or not, until stop is called, which returns the rate that was
// reached.
func (z *noise) rate(ctx context.Context, rate float64) (stop func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	begin, from := time.Now(), z.made.Load()
	var wg sync.WaitGroup
	wg.Go(func() {
		for due := 0; ctx.Err() == nil; runtime.Gosched() {
			time.Sleep(time.Millisecond)
			for want := int(time.Since(begin).Seconds() * rate); due < want; due++ {
				wg.Go(func() { z.one(ctx, envoyTimeout) })
			}
		}
	})
	return func() float64 {
		took := time.Since(begin).Seconds()
		made := z.made.Load() - from
		cancel()
		wg.Wait()
		return float64(made) / took
	}
}

// surge has others ask three times as much as the server can take, while requests come through the proxy.
func (w *world) surge(deny bool) {
	_, redis := w.redis()
	up := w.upstream(hello)
	rules := perUser("error") + "  - key: noise\n    rate_limit:\n      unit: hour\n      requests_per_unit: 4000000000\n"
	s := w.serve(rules, redis, "GOMAXPROCS=1")
	p := w.proxy(setup{example: "envoy", deny: deny, timeout: envoyTimeout}, up, s)
	spend := w.proxy(setup{example: "envoy", deny: true, timeout: patient}, up, s)
	w.send(spend, same(12)...)
	let := up.all()
	if let != 10 {
		w.Fatalf("%d of 12 pass before, want 10", let)
	}
	z := w.noise(s)
	peak := z.peak(w.Context())
	stopNoise := z.rate(w.Context(), 3*peak)
	stop := w.flow(p, 100, append(few(50), same(50)...)...)
	time.Sleep(3 * time.Second) // so long it lasts
	y, reached := stop(), stopNoise()
	const enough = 2
	if reached < enough*peak {
		w.result.weak = true // the caller has no more of the machine
	}
	stats := p.counts()
	through := up.of("alice") - let
	w.got(through == 0 || !deny && through <= stats.allowed, "alice, who has nothing left, passes %d times; %d of %d calls of the proxy fail, at %.1f × the peak of %.0f a second",
		through, stats.failed, y.all, reached/peak, peak)
	w.got(y.odd == 0 && y.passed+y.rejected+y.failed == y.all, "all %d are answered, within %s", y.all, ms(y.longest))
	if deny {
		w.got(up.all()-let == stats.ok, "%d reach the upstream, %d were decided so", up.all()-let, stats.ok)
	}
	took := testkit.Eventually(w, "limits hold again", func() bool {
		return w.ask(p, "/", "alice").status == http.StatusTooManyRequests
	}, func() string { return strings.TrimSpace(p.log()) })
	w.got(true, "limits hold again after %s", ms(took))
}
