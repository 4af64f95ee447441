// Package rls is Envoy's rate limit service, v3, on the wire: it decodes requests, asks the limiter, and encodes what the
// limiter says.
//
// ShouldRateLimit is what a fleet of proxies calls for every request it forwards, so its messages are read and written by
// hand: a request is decoded in place, its bytes stay in the buffer that grpc received them in until there is a verdict,
// and the answer is written once, into bytes that then belong to grpc. The method is registered as a stream with neither
// side streaming, because only such a handler owns its request from the first byte to the last and may pool it. Everything
// else on the same server (health, reflection, administration) goes through protobuf as usual.
//
// [Service.JSON] is the same way for HTTP: JSON becomes a message, the message takes the path above, and the answer
// becomes JSON.
package rls

import (
	"context"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
)

// The names under which the service is registered.
const (
	ServiceName = "envoy.service.ratelimit.v3.RateLimitService"
	methodName  = "ShouldRateLimit"
)

// MaxMessage is the size of the largest request that is read, in bytes.
const MaxMessage = 4 << 20

// Decider decides requests; it is a limiter.Limiter but for tests.
type Decider interface {
	// Decide fills in v. Neither r nor v may be used by it once it has returned.
	Decide(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error
}

// Config says what goes into answers, and who is told about calls. The zero value answers as envoyproxy/ratelimit does by
// default, and tells nobody.
type Config struct {
	Headers          Headers
	Body             *Body // of refusals; nil leaves the body to Envoy
	DynamicMetadata  bool  // RESPONSE_DYNAMIC_METADATA
	DecisionMetadata bool  // DECISION_METADATA; dynamic metadata is then sent too
	Hooks            Hooks
	Log              *slog.Logger // nil discards
}

// Headers are the response headers that Envoy is asked to add. Empty names stand for the reference's.
type Headers struct {
	Enabled   bool   // LIMIT_RESPONSE_HEADERS_ENABLED: Limit, Remaining, Reset and, where a leaky bucket admits, Wait
	Limit     string // the limit's number; RateLimit-Limit
	Remaining string // hits left; RateLimit-Remaining
	Reset     string // seconds until it is whole again, or until the request would pass; RateLimit-Reset

	// RetryAfter names a header that refusals carry, whether Enabled or not: the seconds until the request would pass.
	// Empty is off.
	RetryAfter string

	// Rule names a header that the request, on its way to upstream, and the answer, on its way to the caller, carry,
	// whether Enabled or not: the name of the rule in force. Empty is off.
	Rule string
}

// WaitHeader carries the milliseconds until the turn of a request that a leaky bucket admitted has come, rounded up. It is
// sent beside the other headers.
const WaitHeader = "RateLimit-Wait"

// Hooks are told what happens. Each may be nil, and each may be called from many goroutines at once.
type Hooks struct {
	// Call is told of each call that was answered, with the method's name and how long it took in seconds.
	Call func(method string, seconds float64)
	// Panic is told of each panic that was recovered.
	Panic func()
	// BadRequest is told of each request that was refused before the limiter saw it: too large, cut short, not a
	// message, too many descriptors or entries.
	BadRequest func()
	// Handshake is told of each TLS handshake that failed, with where the client is and why.
	Handshake func(peer net.Addr, err error)
	// Refused is told of each request that is over a limit. It keeps neither of them, which point into the message.
	Refused func(*limiter.Request, *limiter.Verdict)
	// NoRules tells why there are no rules; the answer repeats it. Empty adds nothing.
	NoRules func() string
}

// Service answers ShouldRateLimit and its JSON twin. It is safe for concurrent use.
type Service struct {
	decider Decider
	config  Config
	calls   sync.Pool // of *call
}

// New makes a Service of d.
func New(d Decider, c Config) *Service {
	c.Headers = c.Headers.withDefaults()
	c.DynamicMetadata = c.DynamicMetadata || c.DecisionMetadata
	c.Hooks = c.Hooks.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{decider: d, config: c, calls: sync.Pool{New: func() any { return new(call) }}}
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
	if h.Handshake == nil {
		h.Handshake = func(net.Addr, error) {}
	}
	if h.Refused == nil {
		h.Refused = func(*limiter.Request, *limiter.Verdict) {}
	}
	if h.NoRules == nil {
		h.NoRules = func() string { return "" }
	}
	return h
}

// register puts ShouldRateLimit on a server, which must use [codec].
func (s *Service) register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		Streams:     []grpc.StreamDesc{{StreamName: methodName, Handler: s.shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto", // for reflection
	}, nil)
}

// shouldRateLimit is the handler of one call.
func (s *Service) shouldRateLimit(_ any, stream grpc.ServerStream) error {
	c := s.calls.Get().(*call)
	if err := stream.RecvMsg(c); err != nil {
		s.release(c)
		if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
			s.config.Hooks.BadRequest()
		}
		return err
	}
	start := time.Now()
	err := s.respond(stream, c, start)
	s.config.Hooks.Call(methodName, time.Since(start).Seconds())
	return err
}

func (s *Service) respond(stream grpc.ServerStream, c *call, now time.Time) error {
	a, err := s.answer(stream.Context(), c, now)
	if err != nil {
		return s.status(stream.Context(), err)
	}
	return stream.SendMsg(a)
}

// answer decides the message that c holds and encodes the verdict. It releases c, unless something panics: what may
// still be in use then is left to the garbage collector. The error is one for [Service.status].
func (s *Service) answer(ctx context.Context, c *call, now time.Time) (a *answer, err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug met by one request must not end the process
			a, err = nil, s.recovered(ctx, methodName, p)
		}
	}()
	err = s.decide(ctx, c, now)
	if err == nil {
		if c.verdict.Over {
			s.config.Hooks.Refused(&c.request, &c.verdict)
		}
		a = s.encode(&c.request, &c.verdict)
	}
	s.release(c)
	return a, err
}

func (s *Service) decide(ctx context.Context, c *call, now time.Time) error {
	if err := c.decode(); err != nil {
		s.config.Hooks.BadRequest()
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if expired(ctx, now) { // and its timer is late
		return context.DeadlineExceeded
	}
	return s.decider.Decide(ctx, &c.request, &c.verdict)
}

func (s *Service) release(c *call) {
	if c.reset() {
		s.calls.Put(c)
	}
}

// recovered logs and counts a panic, and says what the caller is told.
func (s *Service) recovered(ctx context.Context, method string, p any) error {
	s.config.Hooks.Panic()
	s.config.Log.ErrorContext(ctx, "a call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return errPanic
}
