// Package rls implements the wire protocol of Envoy's rate limit service, v3: it decodes requests, asks the limiter,
// and encodes the verdict.
//
// A fleet of proxies calls ShouldRateLimit for every request it forwards, so its messages are decoded and encoded by
// hand: a request is decoded in place, its bytes stay in the buffer in which grpc received them until there is a
// verdict, and the answer is written once, into memory that then belongs to grpc. The method is registered as a stream
// with neither side streaming, because only such a handler owns its request from the first byte to the last and may
// pool it. Everything else on the same server (health, reflection, administration) goes through protobuf as usual.
//
// [Service.JSON] does the same for HTTP: JSON is converted to a message, the message takes the path above, and the
// answer is converted to JSON.
package rls

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/admission"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/throttle"
)

// The names under which the service is registered.
const (
	ServiceName = "envoy.service.ratelimit.v3.RateLimitService"
	Method      = "ShouldRateLimit"
)

// Decider decides requests; it is a limiter.Limiter except in tests.
type Decider interface {
	// Decide returns a verdict that is valid until p is used for another request. It must not retain r or p.
	Decide(ctx context.Context, r *limiter.Request, p *limiter.Scratch) (*limiter.Verdict, error)
}

// Config says what goes into answers, and who is notified of calls. The zero value answers as envoyproxy/ratelimit does
// by default, and notifies nobody.
type Config struct {
	Headers          Headers
	Body             *Body // of refusals; nil leaves the body to Envoy
	DynamicMetadata  bool  // RESPONSE_DYNAMIC_METADATA
	DecisionMetadata bool  // DECISION_METADATA; dynamic metadata is then sent too
	Hooks            Hooks
	Gate             *admission.Gate   // decides which calls are worked on; nil makes one
	Waiting          *netlimit.Waiting // bounds the calls that wait for their message; nil makes one
	Foresee          Foresee           // nil knows all domains
	Log              *slog.Logger      // nil discards
}

// Foresee reports, before a request is decided, whether there are rules for its domain, and whether policies can but fail it.
type Foresee func(domain []byte) (known, fails bool)

// Headers are the response headers that Envoy is asked to add. An empty Limit, Remaining or Reset means the reference's
// name.
type Headers struct {
	Enabled   bool   // LIMIT_RESPONSE_HEADERS_ENABLED: Limit, Remaining, Reset and, if a leaky bucket admits, [WaitHeader]
	Draft     bool   // LIMIT_HEADERS_FORMAT=draft: [PolicyHeader] and [ServiceHeader] in place of Limit, Remaining and Reset
	Limit     string // the limit's number; RateLimit-Limit
	Remaining string // hits left; RateLimit-Remaining
	Reset     string // seconds until it is full again, or until the request would pass; RateLimit-Reset

	// RetryAfter names a header of refusals, whether Enabled or not: the seconds until the request would pass. If empty
	// there is none.
	RetryAfter string

	// Rule names a header that is added to the request to the upstream and to the response to the caller, whether
	// Enabled or not: the name of the rule in force. If empty there is none.
	Rule string
}

// WaitHeader is the name of the header with the milliseconds, rounded up, until the turn of a request that a leaky
// bucket admitted. It is sent in addition to the other headers.
const WaitHeader = "RateLimit-Wait"

// Hooks are notified of what happens. Each may be nil, and may be called concurrently.
type Hooks struct {
	// Call is called after each answered call, with the method's name and how long it took in seconds.
	Call func(method string, seconds float64)
	// Panic is called after each recovered panic.
	Panic func()
	// BadRequest is called for each request rejected before the limiter saw it: too large, truncated, not a message,
	// too many descriptors or entries.
	BadRequest func()
	// Refused is called for each request that is over a limit, late charges included. It must not retain its arguments, which point into the
	// message.
	Refused func(*limiter.Request, *limiter.Verdict)
	// Shed is called for each call that is refused with an error because there is no time even for policies.
	Shed func()
	// NoRules returns why there are no rules, which is added to the answer unless it is empty.
	NoRules func() string
}

// Service answers ShouldRateLimit and its JSON twin. It is safe for concurrent use.
type Service struct {
	decider Decider
	config  Config
	calls   sync.Pool     // of *call
	large   *throttle.Log // of requests that have too much
}

// New returns a Service that decides by d.
func New(d Decider, c Config) *Service {
	c.Headers = c.Headers.withDefaults()
	c.DynamicMetadata = c.DynamicMetadata || c.DecisionMetadata
	c.Hooks = c.Hooks.withDefaults()
	if c.Foresee == nil {
		c.Foresee = func([]byte) (known, fails bool) { return true, false }
	}
	if c.Gate == nil {
		c.Gate = admission.New(admission.Config{Patience: time.Hour})
	}
	if c.Waiting == nil {
		c.Waiting = netlimit.NewWaiting(netlimit.Bounds{})
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		decider: d,
		config:  c,
		calls:   sync.Pool{New: func() any { return new(call) }},
		large:   throttle.Every(time.Minute),
	}
}

func (h Headers) withDefaults() Headers {
	if h.Limit == "" {
		h.Limit = "RateLimit-Limit"
	}
	if h.Remaining == "" {
		h.Remaining = "RateLimit-Remaining"
	}
	if h.Reset == "" {
		h.Reset = "RateLimit-Reset"
	}
	return h
}

func (h Hooks) withDefaults() Hooks {
	if h.Call == nil {
		h.Call = func(string, float64) {}
	}
	if h.Panic == nil {
		h.Panic = func() {}
	}
	if h.BadRequest == nil {
		h.BadRequest = func() {}
	}
	if h.Refused == nil {
		h.Refused = func(*limiter.Request, *limiter.Verdict) {}
	}
	if h.Shed == nil {
		h.Shed = func() {}
	}
	if h.NoRules == nil {
		h.NoRules = func() string { return "" }
	}
	return h
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

// shouldRateLimit is the handler of one call.
func (s *Service) shouldRateLimit(_ any, stream grpc.ServerStream) (err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one request hits must not end the process
			err = s.recovered(stream.Context(), Method, p)
		}
	}()
	a := stream.Context().Value(arrivalKey{}).(*arrival)
	if a.refused != nil {
		return a.refused
	}
	late := time.Since(a.at)
	if err := a.await(stream); err != nil {
		a.drop()
		if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
			s.config.Hooks.BadRequest()
		}
		return err
	}
	start := time.Now()
	err = s.respond(stream, a, late, start)
	s.config.Hooks.Call(Method, time.Since(start).Seconds())
	return err
}

// respond answers the call of which a has the message. Its handler began late after its headers were read.
func (s *Service) respond(stream grpc.ServerStream, a *arrival, late time.Duration, now time.Time) error {
	ctx := stream.Context()
	verdict, inFlight := s.admit(ctx, a, late)
	if verdict == admission.Reject {
		a.drop()
		s.config.Hooks.Shed()
		if expired(ctx, time.Now()) {
			return errLate
		}
		return errOverload
	}
	c := s.calls.Get().(*call)
	c.hold(a.message)
	c.inFlight = inFlight
	c.request.Late = verdict == admission.Fallback
	err := s.answer(ctx, c, &a.answer, now)
	if err == nil {
		return stream.SendMsg(&a.answer)
	}
	if err == limiter.ErrOverload { //nolint:errorlint // as it is returned, when every moment counts
		return errOverload
	}
	return s.status(ctx, err)
}

// admit returns what becomes of the call of which a has the message, once it is its turn, and whether it counts as in
// flight. Calls for domains without rules never wait: to answer them costs next to nothing.
func (s *Service) admit(ctx context.Context, a *arrival, late time.Duration) (v admission.Verdict, inFlight bool) {
	gate := s.config.Gate
	if gate.Enter(late) {
		return admission.Proceed, true
	}
	name, descriptors := outline(a.message.ReadOnlyData())
	known, fails := s.config.Foresee(name)
	if !known {
		return admission.Proceed, false
	}
	c := admission.Call{Domain: hashOf(name), Cost: descriptors, Size: a.message.Len(), Late: late, NoFallback: fails}
	c.Deadline, _ = ctx.Deadline()
	if a.conn != nil {
		c.Source = &a.conn.Source
	}
	v = gate.Wait(c)
	return v, v == admission.Proceed
}

// answer decides the message that c holds and encodes the verdict in a. It releases c, except after a panic: c may then
// still be in use, and is left to the garbage collector. The error must go through [Service.status].
func (s *Service) answer(ctx context.Context, c *call, a *answer, now time.Time) (err error) {
	inFlight := c.inFlight
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one request hits must not end the process
			err = s.recovered(ctx, Method, p)
		}
		if inFlight {
			s.config.Gate.Done()
		}
	}()
	v, err := s.decide(ctx, c, now)
	if err == nil {
		if v.Over {
			s.config.Hooks.Refused(&c.request, v)
		}
		s.encode(a, &c.request, v)
	}
	s.release(c)
	return err
}

func (s *Service) decide(ctx context.Context, c *call, now time.Time) (*limiter.Verdict, error) {
	c.request.Read = now
	if err := c.decode(); err != nil {
		s.config.Hooks.BadRequest()
		s.logTooLarge(ctx, c.message, err)
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if expired(ctx, now) { // but its timer is late
		return nil, context.DeadlineExceeded
	}
	return s.decider.Decide(ctx, &c.request, &c.scratch)
}

// logTooLarge logs what a request has that was refused for err, if that is that it has too much; once a minute, as its proxy sends
// such requests again and again, and lets them pass.
func (s *Service) logTooLarge(ctx context.Context, message []byte, err error) {
	if !errors.Is(err, limiter.ErrTooManyDescriptors) && !errors.Is(err, limiter.ErrTooManyEntries) {
		return
	}
	omitted, ok := s.large.Allow("")
	if !ok {
		return
	}
	found := sizeOf(message)
	s.config.Log.WarnContext(ctx, "a request has too many descriptors or entries, and was answered INVALID_ARGUMENT: have the proxy send fewer",
		"domain", Short(string(found.domain)), "descriptors", found.descriptors, "most_descriptors", limiter.MaxDescriptors,
		"entries", found.entries, "most_entries", limiter.MaxEntries, "omitted", omitted)
}

func (s *Service) release(c *call) {
	if c.reset() {
		s.calls.Put(c)
	}
}

// recovered logs and counts a panic, and returns the error for the caller.
func (s *Service) recovered(ctx context.Context, method string, p any) error {
	s.config.Hooks.Panic()
	s.config.Log.ErrorContext(ctx, "a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return errPanic
}
