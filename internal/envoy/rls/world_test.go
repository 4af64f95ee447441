package rls

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const method = "/" + ServiceName + "/" + Method

// world is a running server with counters in memory, and access to its internals.
type world struct {
	ratelimitv3.RateLimitServiceClient

	t       *testing.T
	conn    *grpc.ClientConn
	address string
	service *Service
	server  *grpcserver.Server
	store   *recorder
	stats   *stats.Registry
}

// recorder is a backend that records operations.
type recorder struct {
	*memory.Backend

	mu   sync.Mutex
	keys map[backend.Key]int
	hook func(ctx context.Context) // called before each Apply; may be nil
}

// Apply implements backend.Backend.
func (r *recorder) Apply(ctx context.Context, ops []backend.Op) {
	if r.hook != nil {
		r.hook(ctx)
	}
	r.mu.Lock()
	for i := range ops {
		r.keys[ops[i].Key]++
	}
	r.mu.Unlock()
	r.Backend.Apply(ctx, ops)
}

// asked returns the number of operations, and the number of their keys.
func (r *recorder) asked() (ops, keys int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.keys {
		ops += n
	}
	return ops, len(r.keys)
}

// start runs a server with these rules. Its clock stands still, half a second after 2026-11-20 12:00 UTC.
func start(t *testing.T, rules string, c Config) *world {
	t.Helper()
	w := &world{t: t, stats: stats.New(), store: &recorder{
		Backend: memory.New(memory.Config{Now: atNoon}),
		keys:    make(map[backend.Key]int),
	}}
	l := limiter.New(w.store, w.stats, limiter.Config{})
	l.SetRules(rulefiletest.Load(t, rules))
	c.Registry = w.stats
	w.service = New(l, c)
	w.server = newServer(w.service, grpcserver.Config{})
	w.address = serve(t, w.server)
	w.conn = dial(t, w.address)
	w.RateLimitServiceClient = ratelimitv3.NewRateLimitServiceClient(w.conn)
	return w
}

// atNoon returns the time at which every world stands still.
func atNoon() engine.Micros {
	return engine.Micros(time.Date(2026, 11, 20, 12, 0, 0, 500_000_000, time.UTC).UnixMicro())
}

// inProcess asks s as the handler does, without a connection.
func inProcess(t *testing.T, s *Service, r *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
	t.Helper()
	c := s.calls.Get().(*call)
	c.hold(mem.SliceBuffer(marshal(t, r)))
	a, m := new(answer), new(ratelimitv3.RateLimitResponse)
	if err := s.answer(t.Context(), c, a, time.Now()); err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	if err := proto.Unmarshal(a.ReadOnlyData(), m); err != nil {
		t.Fatal(err)
	}
	return m
}

// encoded returns the bytes of the answer to r.
func encoded(s *Service, r *limiter.Request, v *limiter.Verdict) []byte {
	a := new(answer)
	s.encode(a, r, v)
	return a.ReadOnlyData()
}

// bad returns the number of bad requests.
func (w *world) bad() uint64 { return w.service.bad.Load() }

// calls returns the number of gRPC calls.
func (w *world) calls() uint64 { return w.stats.Totals(Method).Calls }

// ask sends a request and expects an answer.
func (w *world) ask(r *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
	w.t.Helper()
	answer, err := w.ShouldRateLimit(w.t.Context(), r)
	if err != nil {
		w.t.Fatalf("%v: %v", r, err)
	}
	return answer
}

// want sends a request and expects the statuses, in the form "OK 3" or "OVER_LIMIT 0" with the remaining hits, separated by spaces.
func (w *world) want(want string, r *ratelimitv3.RateLimitRequest) {
	w.t.Helper()
	if got := statuses(w.ask(r)); got != want {
		w.t.Fatalf("%.200v: %s, want %s", r, got, want)
	}
}

func statuses(m *ratelimitv3.RateLimitResponse) string {
	var all []string
	for _, s := range m.GetStatuses() {
		all = append(all, fmt.Sprintf("%v %d", s.GetCode(), s.GetLimitRemaining()))
	}
	return strings.Join(all, " ")
}

// raw is a codec that sends bytes unchanged.
type raw struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// send sends arbitrary bytes as a request.
func (w *world) send(message []byte) (*ratelimitv3.RateLimitResponse, error) {
	answer := new(ratelimitv3.RateLimitResponse)
	codec := raw{encoding.GetCodecV2("proto")}
	err := w.conn.Invoke(w.t.Context(), method, message, answer, grpc.ForceCodecV2(codec))
	return answer, err
}

// series returns the names of the existing counters.
func (w *world) series() []string {
	w.t.Helper()
	var b bytes.Buffer
	if err := w.stats.WriteText(&b); err != nil {
		w.t.Fatal(err)
	}
	return slices.Collect(strings.Lines(b.String()))
}
