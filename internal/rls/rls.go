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
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/throttle"
)

// The names under which the service is registered.
const (
	ServiceName = "envoy.service.ratelimit.v3.RateLimitService"
	Method      = "ShouldRateLimit"
	fullMethod  = "/" + ServiceName + "/" + Method
)

// MaxMessage is the size in bytes of the largest request that is accepted.
const MaxMessage = 4 << 20

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
	Gate             *overload.Gate // knows of all calls; nil lets in as many as come
	Foresee          Foresee        // nil knows all domains
	MaxWaiting       int            // GRPC_MAX_WAITING_CALLS: calls that wait for their message, and as many of other methods; 0 means 4096
	Log              *slog.Logger   // nil discards
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
	// Handshake is called for each failed TLS handshake, with the client's address and the reason, which is [ErrNothingSent] where
	// that is so.
	Handshake func(peer net.Addr, err error)
	// Began is called with what the first bytes of each connection are, inside TLS if there is some.
	Began func(peer net.Addr, p Protocol)
	// Refused is called for each request that is over a limit, late charges included. It must not retain its arguments, which point into the
	// message.
	Refused func(*limiter.Request, *limiter.Verdict)
	// Shed is called for each call that is refused with an error because there is no time even for policies.
	Shed func()
	// TooManyWaiting is called for each call that is refused because too many others wait for their message.
	TooManyWaiting func()
	// Flood is called when such calls begin to be refused, and when half of those that waited have ended. Calls that are
	// refused are nothing but garbage.
	Flood func(on bool)
	// NoRules returns why there are no rules, which is added to the answer unless it is empty.
	NoRules func() string
}

// Service answers ShouldRateLimit and its JSON twin. It is safe for concurrent use.
type Service struct {
	decider Decider
	config  Config
	calls   sync.Pool // of *call
	culling *culling
	waiting waiting
	others  others
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
		c.Gate = overload.New(overload.Config{MaxCalls: math.MaxInt, Patience: time.Hour})
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	most := int64(cmp.Or(c.MaxWaiting, maxWaiting))
	s := &Service{
		decider: d,
		config:  c,
		calls:   sync.Pool{New: func() any { return new(call) }},
		culling: newCulling(),
		large:   throttle.Every(time.Minute),
		waiting: waiting{most: most, flood: c.Hooks.Flood, refused: c.Hooks.TooManyWaiting},
		others:  others{most: most, refused: c.Hooks.TooManyWaiting, open: map[*otherCall]int{}},
	}
	s.waiting.others, s.others.look = &s.others, s.waiting.run
	return s
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
	if h.Began == nil {
		h.Began = func(net.Addr, Protocol) {}
	}
	if h.Refused == nil {
		h.Refused = func(*limiter.Request, *limiter.Verdict) {}
	}
	if h.Shed == nil {
		h.Shed = func() {}
	}
	if h.TooManyWaiting == nil {
		h.TooManyWaiting = func() {}
	}
	if h.Flood == nil {
		h.Flood = func(bool) {}
	}
	if h.NoRules == nil {
		h.NoRules = func() string { return "" }
	}
	return h
}

// register registers ShouldRateLimit on a server, which must use [codec].
func (s *Service) register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: ServiceName,
		Streams:     []grpc.StreamDesc{{StreamName: Method, Handler: s.shouldRateLimit}},
		Metadata:    "envoy/service/ratelimit/v3/rls.proto", // for reflection
	}, nil)
}

// shouldRateLimit is the handler of one call.
func (s *Service) shouldRateLimit(_ any, stream grpc.ServerStream) (err error) {
	a, ok := stream.Context().Value(arrivalKey{}).(*arrival)
	if !ok {
		return refused(stream.Context())
	}
	a.count()
	defer func() {
		a.leave()
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one request hits must not end the process
			err = s.recovered(stream.Context(), Method, p)
		}
	}()
	if stream.Context().Err() != nil {
		s.config.Gate.Missed(time.Since(a.at), a.patience())
	}
	if err := a.await(stream); err != nil {
		a.drop()
		if code := status.Code(err); code != codes.Canceled && code != codes.DeadlineExceeded {
			s.config.Hooks.BadRequest()
		}
		return err
	}
	start := time.Now()
	err = s.respond(stream, a, start)
	s.config.Hooks.Call(Method, time.Since(start).Seconds())
	return err
}

// respond answers the call of which a has the message.
func (s *Service) respond(stream grpc.ServerStream, a *arrival, now time.Time) error {
	ctx := stream.Context()
	turn := s.turn(ctx, a, now)
	if turn.Verdict == overload.Lost {
		a.drop()
		s.config.Hooks.Shed()
		if expired(ctx, time.Now()) {
			return errLate
		}
		return errOverload
	}
	if turn != (overload.Turn{}) {
		now = time.Now()
		if err := ctx.Err(); err != nil { // nobody waits for it any more
			a.drop()
			s.config.Gate.Done(turn, false)
			return s.status(ctx, err)
		}
	}
	c := s.calls.Get().(*call)
	c.hold(a.message)
	c.turn = turn
	c.request.Late, c.request.Answer = turn.Verdict == overload.Late, turn.Answer
	err := s.answer(ctx, c, &a.answer, now)
	if err == nil {
		return stream.SendMsg(&a.answer)
	}
	if err == limiter.ErrOverload { //nolint:errorlint // as it is returned, when every moment counts
		return errOverload
	}
	return s.status(ctx, err)
}

// turn waits for the turn of the call of which a has the message.
func (s *Service) turn(ctx context.Context, a *arrival, now time.Time) overload.Turn {
	waited := now.Sub(a.at)
	if s.config.Gate.Free(waited) {
		return overload.Turn{}
	}
	message := a.message.ReadOnlyData()
	c := overload.Call{Size: len(message), Waited: waited, Client: a.client}
	if a.known {
		c.Seen = &a.seen
	}
	c.Domain, c.Cheap = s.whose(message)
	c.Cheap = c.Cheap || a.known && a.seen.Cheap
	var found bool
	if c.Deadline, found = ctx.Deadline(); !found {
		c.Deadline = a.at.Add(s.config.Gate.Patience())
	}
	return s.config.Gate.Wait(c)
}

// whose returns a number by which the domain of a message is told apart, and whether policies can but fail it. All domains without
// rules have the same: nobody gets more than a share by inventing some.
func (s *Service) whose(message []byte) (domain uint32, fails bool) {
	name := domainOf(message)
	known, fails := s.config.Foresee(name)
	if !known {
		name = nil
	}
	return hashOf(name), fails
}

// seen returns what a message says of its call. It is called by what reads a connection, where nothing else recovers.
func (s *Service) seen(message []byte) (seen hint) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one request hits must not end the process
			_ = s.recovered(context.Background(), Method, p)
		}
	}()
	seen.Size = len(message)
	seen.Domain, seen.fails = s.whose(message)
	return seen
}

// answer decides the message that c holds and encodes the verdict in a. It releases c, except after a panic: c may then
// still be in use, and is left to the garbage collector. The error must go through [Service.status].
func (s *Service) answer(ctx context.Context, c *call, a *answer, now time.Time) (err error) {
	turn, shed := c.turn, false
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one request hits must not end the process
			err = s.recovered(ctx, Method, p)
		}
		s.config.Gate.Done(turn, shed)
	}()
	v, err := s.decide(ctx, c, now)
	shed = c.scratch.Shed()
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
