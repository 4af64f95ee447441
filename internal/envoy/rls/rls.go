// Package rls implements the wire protocol of Envoy's rate limit service, v3. It decodes requests, asks the limiter, and encodes the
// verdicts.
//
// Proxies call ShouldRateLimit for every request that they forward, so its messages are decoded and encoded by hand. A request is decoded
// in place: its bytes stay in grpc's receive buffer until there is a verdict. The answer is written once, into memory that grpc then
// owns. The method is registered as a stream with neither side streaming, because only such a handler owns its request from the first
// byte to the last and may pool it. All other methods on the same server (health, reflection, administration) use protobuf as usual.
//
// A call takes these steps. [Service.LetIn] sees its headers and decides whether to receive it. The handler receives the message and
// waits for its turn at the gate of package admission. Then it decodes and decides the message and encodes the verdict (answer).
//
// [Service.JSON] does the same for HTTP: it converts JSON to a message, processes the message as above, and converts the answer to JSON.
//
// This package is part of the core.
package rls

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// Names under which the service is registered.
const (
	ServiceName = "envoy.service.ratelimit.v3.RateLimitService"
	Method      = "ShouldRateLimit"
)

// Decider decides requests. It is a limiter.Limiter except in tests.
type Decider interface {
	// Decide returns a verdict that is valid until the next use of p. It must not retain r or p.
	Decide(ctx context.Context, r *limiter.Request, p *limiter.Scratch) (*limiter.Verdict, error)
}

// Config configures a Service. The zero value answers as envoyproxy/ratelimit does by default.
type Config struct {
	Headers          Headers
	Body             *Body           // body of rejections; nil leaves the body to Envoy
	DynamicMetadata  bool            // RESPONSE_DYNAMIC_METADATA
	DecisionMetadata bool            // DECISION_METADATA; implies DynamicMetadata
	Gate             *admission.Gate // limits the calls in progress; nil means a new gate
	Foresee          Foresee         // nil treats every domain as having rules and fallbacks
	Registry         *stats.Registry // counts calls, their durations and errors; nil means a new registry
	Log              *slog.Logger    // nil discards

	// Rejected is called for each answer of OVER_LIMIT, including late charges. It must not retain its arguments, which point into the
	// message. It may be nil.
	Rejected func(*limiter.Request, *limiter.Verdict)
	// NoRules returns the reason why there are no rules, which is added to the error unless it is empty. It may be nil.
	NoRules func() string
}

// Foresee reports, before a request is decided, whether its domain has rules, and whether all their fallbacks are errors, so that a
// request that is shed certainly fails.
type Foresee func(domain []byte) (exists, fails bool)

// Headers configures the headers that Envoy adds to responses and requests. If Limit, Remaining or Reset is empty, the header has the
// reference's name.
type Headers struct {
	Enabled   bool   // LIMIT_RESPONSE_HEADERS_ENABLED: Limit, Remaining, Reset and, if a leaky bucket admits, [WaitHeader]
	Draft     bool   // LIMIT_HEADERS_FORMAT=draft: [PolicyHeader] and [ServiceHeader] in place of Limit, Remaining and Reset
	Limit     string // the limit's number; RateLimit-Limit
	Remaining string // hits remaining; RateLimit-Remaining
	Reset     string // seconds until the limit is full again, or until the request would pass; RateLimit-Reset

	// RetryAfter names a header of rejections, even if Enabled is false: the seconds until the request would pass. It is omitted if the
	// request can never pass. Empty disables it.
	RetryAfter string

	// Rule names a header of the upstream request and of the response, even if Enabled is false: the name of the decisive rule. Empty
	// disables it.
	Rule string

	// Request configures headers of the upstream request, independent of the verdict and the other headers: LIMIT_REQUEST_….
	Request struct {
		Enabled                 bool
		Limit, Remaining, Reset string // as in Headers
	}

	// Shadow names a header of the upstream request: the name of the first rule that is over its limit but rejects nothing because of shadow
	// mode. Empty disables it.
	Shadow string
}

// WaitHeader is the name of the header with the time in milliseconds, rounded up, until the turn of a request that a leaky bucket
// admitted. It is sent in addition to the other headers.
const WaitHeader = "RateLimit-Wait"

// Service answers ShouldRateLimit over gRPC and JSON. It is safe for concurrent use.
type Service struct {
	decider Decider
	config  Config
	calls   sync.Pool     // of *call
	large   *throttle.Log // limits log messages about requests with too many descriptors or entries
	panics  *count.Counter
	bad     *count.Counter // messages that are malformed or too large
	shed    *count.Counter // calls that fail because there is no time even for a fallback
}

// New returns a Service that decides with d.
func New(d Decider, c Config) *Service {
	c.Headers.Limit = cmp.Or(c.Headers.Limit, "RateLimit-Limit")
	c.Headers.Remaining = cmp.Or(c.Headers.Remaining, "RateLimit-Remaining")
	c.Headers.Reset = cmp.Or(c.Headers.Reset, "RateLimit-Reset")
	upstream := &c.Headers.Request
	upstream.Limit = cmp.Or(upstream.Limit, "RateLimit-Limit")
	upstream.Remaining = cmp.Or(upstream.Remaining, "RateLimit-Remaining")
	upstream.Reset = cmp.Or(upstream.Reset, "RateLimit-Reset")
	c.DynamicMetadata = c.DynamicMetadata || c.DecisionMetadata
	if c.Foresee == nil {
		c.Foresee = func([]byte) (exists, fails bool) { return true, false }
	}
	if c.Gate == nil {
		c.Gate = admission.New(time.Hour)
	}
	c.Registry = cmp.Or(c.Registry, stats.New())
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	return &Service{
		decider: d,
		config:  c,
		calls:   sync.Pool{New: func() any { return new(call) }},
		large:   throttle.Every(time.Minute),
		panics:  c.Registry.Counter(stats.PanicsTotal),
		bad:     c.Registry.Counter(stats.ShouldRateLimitError, "service_error"),
		shed:    c.Registry.Counter(stats.ShedTotal, "", "calls"),
	}
}

// Name implements grpcserver.Service.
func (*Service) Name() string { return ServiceName }

// Method implements grpcserver.Service.
func (*Service) Method() string { return Method }

// Register implements grpcserver.Service.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		Streams:     []grpc.StreamDesc{{StreamName: Method, Handler: s.shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto", // for reflection
	}, nil)
}

// LetIn implements grpcserver.Service. It rejects calls while the process is overloaded.
func (s *Service) LetIn(conn *netlimit.Conn) error {
	if s.config.Gate.LetIn(&conn.Source) {
		return nil
	}
	s.shed.Add(1)
	return errOverload
}

// exchange holds the message and the answer of a call. Before receiving, message is nil; before deciding, answer is empty.
type exchange struct {
	message mem.Buffer
	answer  answer
}

// largestPooled is the size of the second-largest buffer in grpc's pool; the largest is 1 MiB. A message occupies its buffer while its
// call is in progress.
const largestPooled = 32 << 10

// Receive implements grpcserver.Receiver. It ignores a second message; grpc then fails the call with INTERNAL.
func (x *exchange) Receive(data mem.BufferSlice) {
	switch {
	case x.message != nil:
	case data.Len() > largestPooled:
		x.message = data.MaterializeToBuffer(mem.NopBufferPool{})
	default:
		x.message = data.MaterializeToBuffer(mem.DefaultBufferPool())
	}
}

// drop frees the message, if any.
func (x *exchange) drop() {
	if x.message != nil {
		x.message.Free()
	}
}

// shouldRateLimit handles one call.
func (s *Service) shouldRateLimit(_ any, stream grpc.ServerStream) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug in the handling of one request must not end the process
			err = s.recovered(stream.Context(), p)
		}
	}()
	a := grpcserver.ArrivalOf(stream.Context())
	if a.Shed != nil {
		return a.Shed
	}
	late, x := time.Since(a.At), new(exchange)
	if err := stream.RecvMsg(x); err != nil {
		a.Received(0, err)
		x.drop()
		if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
			s.bad.Add(1)
		}
		return err
	}
	a.Received(x.message.Len(), nil)
	start := time.Now()
	err = s.respond(stream.Context(), &a.Conn.Source, x, late, start)
	if err == nil {
		err = x.answer.SendBy(stream, a.Conn, &x.answer)
	}
	s.config.Registry.ObserveCall(Method, time.Since(start).Seconds())
	return err
}

// respond decides the message of x, received from source, and stores the answer in x; late is the time from the call's headers to its
// handler.
func (s *Service) respond(ctx context.Context, source *admission.Source, x *exchange, late time.Duration, now time.Time) error {
	verdict, inFlight := s.admit(ctx, source, x.message.ReadOnlyData(), late)
	if verdict == admission.Reject {
		x.drop()
		s.shed.Add(1)
		if expired(ctx, time.Now()) {
			return errLate
		}
		return errOverload
	}
	if inFlight {
		defer s.config.Gate.Done()
	}
	c := s.calls.Get().(*call)
	c.hold(x.message)
	c.request.OutOfTime = verdict == admission.Fallback
	err := s.answer(ctx, c, &x.answer, now)
	switch err {
	case nil:
		return nil
	case limiter.ErrOverload: //nolint:errorlint // the limiter returns it unwrapped, and speed matters here
		return errOverload
	default:
		return s.status(ctx, err)
	}
}

// admit waits for the turn of a call. It returns the verdict of the gate, and whether the call counts as in flight. Calls for domains
// without rules never wait, because answering them is almost free.
func (s *Service) admit(ctx context.Context, from *admission.Source, message []byte, late time.Duration) (v admission.Verdict, inFlight bool) {
	gate := s.config.Gate
	if gate.Enter(late) {
		return admission.Proceed, true
	}
	name, descriptors := outline(message)
	exists, fails := s.config.Foresee(name)
	if !exists {
		return admission.Proceed, false
	}
	c := admission.Call{Domain: hashOf(name), Cost: descriptors, Size: len(message), Delay: late, NoFallback: fails, Source: from}
	c.Deadline, _ = ctx.Deadline()
	v = gate.Wait(c)
	return v, v == admission.Proceed
}

// answer decides the message of c and encodes the verdict in a. It releases c, except after a panic: other code may still use c then, so
// the garbage collector frees it. The caller must pass the error through [Service.status].
func (s *Service) answer(ctx context.Context, c *call, a *answer, now time.Time) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug in the handling of one request must not end the process
			err = s.recovered(ctx, p)
		}
	}()
	c.request.Read = now
	switch err = c.decode(); {
	case err != nil:
		s.bad.Add(1)
		s.logTooLarge(ctx, &c.request, err)
	case ctx.Err() != nil:
		err = ctx.Err()
	case expired(ctx, now): // the timer of ctx may be late
		err = context.DeadlineExceeded
	default:
		var v *limiter.Verdict
		if v, err = s.decider.Decide(ctx, &c.request, &c.scratch); err != nil {
			break
		}
		if v.Over && s.config.Rejected != nil {
			s.config.Rejected(&c.request, v)
		}
		s.encode(a, &c.request, v)
	}
	if c.reset() {
		s.calls.Put(c)
	}
	return err
}

// recovered logs and counts a panic, and returns the error for the caller.
func (s *Service) recovered(ctx context.Context, p any) error {
	s.panics.Add(1)
	s.config.Log.ErrorContext(ctx, "a call panicked", "method", Method, "panic", p, "stack", string(debug.Stack()))
	return grpcserver.ErrPanic
}

// logTooLarge logs a request with too many descriptors or entries if err reports that. It does so once a minute, since the proxy keeps
// sending such requests, and admits them.
func (s *Service) logTooLarge(ctx context.Context, r *limiter.Request, err error) {
	if !errors.Is(err, limiter.ErrTooManyDescriptors) && !errors.Is(err, limiter.ErrTooManyEntries) {
		return
	}
	s.large.Through(s.config.Log, "").WarnContext(ctx,
		"a request has too many descriptors or entries, so it failed with INVALID_ARGUMENT: make the proxy send fewer",
		"domain", Short(string(r.Domain)), "reason", err.Error())
}
