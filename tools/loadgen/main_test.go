package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
)

// answer is a test server's answer to a call.
type answer func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error)

type service struct {
	rlsv3.UnimplementedRateLimitServiceServer

	answer answer
}

func (s service) ShouldRateLimit(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	code, err := s.answer(ctx, r)
	return &rlsv3.RateLimitResponse{OverallCode: code}, err
}

// serve returns the address of a server.
func serve(t *testing.T, a answer, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	rlsv3.RegisterRateLimitServiceServer(s, service{answer: a})
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// play runs the command, and returns its reports.
func play(t *testing.T, args ...string) (all []report) {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), args, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for lines := json.NewDecoder(&out); ; {
		var r report
		err := lines.Decode(&r)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
}

// TestVerdicts: all ways in which calls end are counted separately, and keys are drawn uniformly.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(_ context.Context, r *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		if d := r.GetDescriptors(); len(d) != 2 || len(d[0].GetEntries()) != 2 || d[1].GetEntries()[0].GetKey() != "path" || r.GetDomain() != "shop" {
			t.Errorf("asked for %v", r)
		}
		switch r.GetDescriptors()[0].GetEntries()[1].GetValue() {
		case "u0":
			return rlsv3.RateLimitResponse_OK, nil
		case "u1":
			return rlsv3.RateLimitResponse_OVER_LIMIT, nil
		case "u2":
			return rlsv3.RateLimitResponse_UNKNOWN, nil
		default:
			return 0, status.Error(codes.Unavailable, "no")
		}
	})
	for _, loop := range [][]string{{"-inflight", "3"}, {"-rates", "2000"}} {
		all := play(t, append([]string{
			"-addr", addr, "-domain", "shop", "-template", "tenant=a,user=u%d|path=/", "-keys", "4", "-conns", "3",
			"-warmup", "20ms", "-duration", "300ms", "-watch", "self=" + strconv.Itoa(os.Getpid()),
		}, loop...)...)
		if len(all) != 1 {
			t.Fatalf("%v: want a report, got %+v", loop, all)
		}
		r := all[0]
		if r.OK == 0 || r.OverLimit == 0 || r.Unknown == 0 || r.Failed == 0 || r.Late != 0 || r.Requests != r.OK+r.OverLimit+r.Unknown+r.Failed {
			t.Errorf("%v: want each verdict, none late, and their sum: %+v", loop, r)
		}
		if share := float64(r.OK) / float64(r.Requests); share < 0.05 || share > 0.45 {
			t.Errorf("%v: want about a quarter of the calls for each key: %+v", loop, r)
		}
		if r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Max || r.CPU["self"] <= 0 || r.Busy["self"] <= 0 {
			t.Errorf("%v: want latencies, and processor time: %+v", loop, r)
		}
	}
}

// TestHTTP: over HTTP/1.1, each status has its own count, connections are kept, and broken ones are replaced.
func TestHTTP(t *testing.T) {
	t.Parallel()
	var opened, broken atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-User") {
		case "u0":
			_, _ = io.WriteString(w, "hello")
		case "u1":
			w.WriteHeader(http.StatusTooManyRequests)
		case "u2":
			w.WriteHeader(http.StatusInternalServerError)
		case "u3":
			broken.Add(1)
			panic(http.ErrAbortHandler)
		default:
			t.Errorf("asked by %q", r.Header)
		}
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	all := play(t, "-addr", s.Listener.Addr().String(), "-http", "-template", "x-user: u%d", "-keys", "4", "-conns", "3", "-once")
	if len(all) != 1 || all[0].OK != 1 || all[0].OverLimit != 1 || all[0].Failed != 2 || all[0].Requests != 4 {
		t.Errorf("want one of each: %+v", all)
	}
	r := play(t, "-addr", s.Listener.Addr().String(), "-http", "-template", "x-user: u%d", "-keys", "4", "-conns", "3", "-warmup", "20ms", "-duration", "300ms")[0]
	if r.OK == 0 || r.OverLimit == 0 || r.Failed < r.OK || r.P50 <= 0 || r.P50 > r.P99 {
		t.Errorf("want each outcome, and twice as many failures, and latencies: %+v", r)
	}
	// Each run first checks for a listener.
	if n, most := opened.Load(), broken.Load()+2*(3+1); n > most {
		t.Errorf("%d connections for %d that broke, want at most %d", n, broken.Load(), most)
	}
}

// TestStall: while a server does not answer, an open loop counts the waits of all calls due in that time.
func TestStall(t *testing.T) {
	t.Parallel()
	const stall = 300 * time.Millisecond
	first := sync.OnceValue(time.Now)
	addr := serve(t, func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		time.Sleep(time.Until(first().Add(stall)))
		return rlsv3.RateLimitResponse_OK, nil
	})
	r := play(t, "-addr", addr, "-rates", "200", "-warmup", "0s", "-duration", "1s")[0]
	if r.Requests != 200 || r.OK != 200 || r.Offered != 200 {
		t.Errorf("want the 200 calls that were due: %+v", r)
	}
	if want := 0.9 * float64(stall.Microseconds()); r.Max < want || r.P90 < want/3 {
		t.Errorf("want a maximum of at least %.0f µs, and a tenth of the calls above a third of it: %+v", want, r)
	}
}

// TestOnce: -once calls with each key once, for any number of connections, and then ends.
func TestOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]int{}
	addr := serve(t, func(_ context.Context, r *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[r.GetDescriptors()[0].GetEntries()[0].GetValue()]++
		return rlsv3.RateLimitResponse_OK, nil
	})
	const keys = 1000
	all := play(t, "-addr", addr, "-template", "user=u%d", "-keys", strconv.Itoa(keys), "-once", "-conns", "3", "-watch", "self="+strconv.Itoa(os.Getpid()))
	if len(all) != 1 || all[0].Requests != keys || all[0].OK != keys || all[0].Rate <= 0 || all[0].P50 <= 0 {
		t.Errorf("want one report of %d calls: %+v", keys, all)
	}
	for i := range keys {
		if n := asked["u"+strconv.Itoa(i)]; n != 1 {
			t.Errorf("key %d was asked %d times", i, n)
		}
	}
}

// TestGivesUp: calls without an answer in time are cancelled, and the server receives their timeout.
func TestGivesUp(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(ctx context.Context, _ *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		if deadline, told := ctx.Deadline(); !told || time.Until(deadline) > 50*time.Millisecond {
			return rlsv3.RateLimitResponse_OK, nil
		}
		<-ctx.Done()
		return 0, ctx.Err()
	})
	r := play(t, "-addr", addr, "-rates", "500", "-timeout", "50ms", "-warmup", "0s", "-duration", "500ms")[0]
	if r.Requests != 250 || r.OK != 0 || r.Good != 0 || r.Late+r.Failed != 250 {
		t.Errorf("want 250 calls, all of them given up: %+v", r)
	}
}

// TestHung: a load ends soon even if the server has stopped reading. All its calls are then late or lost.
func TestHung(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = conn.Close() })
		fr := http2.NewFramer(conn, nil)
		_ = fr.WriteSettings()
		_ = fr.WriteWindowUpdate(0, 1<<30) // exceeds the kernels' buffers
	}()
	var sent, answered atomic.Int64
	begin := time.Now()
	r := calls.Load{
		Addr: l.Addr().String(), Conns: 1, At: calls.Evenly(10_000, 1), Timeout: time.Minute,
		Requests: [][]byte{calls.Frame(calls.Request("busy", "k="+strings.Repeat("v", 10_000)))},
		Each: func(_ int, o calls.Outcome) {
			sent.Add(1)
			if o.Kind != calls.Late && o.Kind != calls.Lost {
				answered.Add(1)
			}
		},
	}.Start(t.Context())
	time.Sleep(time.Second)
	r.Stop()
	if took := time.Since(begin); took > 30*time.Second || sent.Load() == 0 || answered.Load() > 0 {
		t.Errorf("ended after %v, %d calls, of which %d were answered", took, sent.Load(), answered.Load())
	}
}

// TestTimes: -times measures a peak, and then offers multiples of it.
func TestTimes(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		time.Sleep(5 * time.Millisecond)
		return rlsv3.RateLimitResponse_OK, nil
	})
	all := play(t, "-addr", addr, "-times", "0.5,2", "-timeout", "1s", "-conns", "2", "-inflight", "2", "-warmup", "50ms", "-duration", "300ms")
	if len(all) != 3 || !all[0].Peak || all[1].Peak || all[0].Good <= 0 || all[0].Good > 820 {
		t.Fatalf("want a peak, which 4 calls of 5 ms each limit to 800 a second, and two rates: %+v", all)
	}
	for i, k := range []float64{0.5, 2} {
		if got := all[i+1].Offered; math.Abs(got-k*all[0].Good) > 1 {
			t.Errorf("offered %g at %g times %g", got, k, all[0].Good)
		}
	}
}

// TestSeed: the seed determines the drawn keys.
func TestSeed(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64, zipf float64) (all []int) {
		c := config{keys: 1000, seed: seed, zipf: zipf}
		c.load.Conns = 2
		pick := c.pick()
		for i := range 100 {
			all = append(all, pick(i%2, i))
		}
		return all
	}
	if !slices.Equal(draw(7, 0), draw(7, 0)) || slices.Equal(draw(7, 0), draw(8, 0)) {
		t.Error("want the same keys for the same seed, and others for another")
	}
	small := 0
	for _, k := range draw(7, 2) {
		if k < 10 {
			small++
		}
	}
	if small < 50 {
		t.Errorf("of 100 draws from a Zipf distribution, %d are of the first ten keys", small)
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(context.Context, *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		return rlsv3.RateLimitResponse_OK, nil
	})
	for _, tt := range []struct{ args, want string }{
		{"-rates 0", "above 0"},
		{"-rates NaN", "above 0"},
		{"-rates 1,x", `"x"`},
		{"-rates 1 -times 2", "one of them"},
		{"-once -rates 1", "one of them"},
		{"-once -zipf 2 -keys 5", "one of them"},
		{"-http -rates 1", "closed loop"},
		{"-keys 0", "at least one"},
		{"-duration 0s", "-duration above 0"},
		{"-zipf 1 -keys 5", "more than 1"},
		{"-watch 5", "NAME=PID"},
		{"-watch a=0", "NAME=PID"},
		{"-addr " + addr + " -watch a=999999999 -duration 10ms -warmup 0s", "looking at a"},
		{"more", "flags alone"},
		{"-template a=\xff", "UTF-8"},
		{"-template a=" + strings.Repeat("a", 17_000), "16384 bytes"},
		{"-addr 127.0.0.1:1 -duration 10ms -warmup 0s", "connection refused"},
	} {
		err := run(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("loadgen %s: %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}

// TestShortTimeout: the server gets a deadline of less than a millisecond instead of none.
func TestShortTimeout(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{500 * time.Microsecond: "500u", 20 * time.Millisecond: "20000u", 200 * time.Second: "200000m"} {
		fields, err := hpack.NewDecoder(0, nil).DecodeFull(calls.Headers(d))
		if err != nil || fields[len(fields)-1].Value != want {
			t.Errorf("%v is told as %v, %v; want %s", d, fields, err, want)
		}
	}
}

// TestOutcomes: each call has its own outcome, whatever the sizes of dynamic tables and the references in answers.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	want := []calls.Outcome{
		{Kind: calls.OK},
		{Kind: calls.OverLimit},
		{Kind: calls.Failed, Code: codes.Internal},
		{Kind: calls.Failed, Code: codes.Unavailable},
	}
	var requests [][]byte
	for _, domain := range []string{"ok", "over", "internal", "unavailable"} {
		requests = append(requests, calls.Frame(calls.Request(domain, "k=v")))
	}
	answers := func(_ context.Context, r *rlsv3.RateLimitRequest) (rlsv3.RateLimitResponse_Code, error) {
		switch r.GetDomain() {
		case "ok":
			return rlsv3.RateLimitResponse_OK, nil
		case "over":
			return rlsv3.RateLimitResponse_OVER_LIMIT, nil
		case "internal":
			return 0, status.Error(codes.Internal, "some bug")
		default:
			return 0, status.Error(codes.Unavailable, "too much")
		}
	}
	for _, kept := range []uint32{4096, 0, 1 << 16} {
		var mu sync.Mutex
		n := 0
		calls.Load{
			Addr: serve(t, answers, grpc.HeaderTableSize(kept)), Requests: requests, Conns: 2, Inflight: 3, Total: 400, Timeout: time.Minute,
			Each: func(_ int, o calls.Outcome) {
				mu.Lock()
				defer mu.Unlock()
				if n++; o.Kind != want[o.What].Kind || o.Code != want[o.What].Code {
					t.Errorf("a server that keeps %d bytes: request %d: %v, %v", kept, o.What, o.Kind, o.Code)
				}
			},
		}.Start(t.Context()).Wait()
		if n != 400 {
			t.Errorf("a server that keeps %d bytes: %d outcomes of 400", kept, n)
		}
	}
}
