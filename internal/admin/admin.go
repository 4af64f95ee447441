// Package admin implements the wire protocol of the admin API: it lists the rules in use, explains how a request would
// be decided, looks at counters, resets them and gives hits back, and puts controls in force.
//
// It is served on the same gRPC server and port as ShouldRateLimit, so it has to guard itself: each method first checks
// that the call brings the token from a file or, if there is none, that it comes from this machine. The methods ask the
// limiter, which does what it does for requests; nothing here knows about backends.
package admin

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/top"
	"github.com/ratelimitd/ratelimitd/internal/watch"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Config says who may use the admin API. The zero value lets callers on the same machine look, and nobody change anything.
type Config struct {
	// Access says who may call, and who may reset counters. New logs a TokenFile that cannot be used.
	Access Access
	// Controls are what Block, Allow, Limit and Lift change; nil stands for controls that nothing obeys.
	Controls *controls.Controls
	// Log gets each change, and what Access logs; nil discards.
	Log *slog.Logger
	// Top and Watch answer the methods of their names; without them these answer UNIMPLEMENTED.
	Top   *top.Top
	Watch *watch.Hub
	// Mask reports whether the values of end users have to be hidden from the caller of ctx, which Access has let in. Top and Watch
	// then have another text in place of each, and do not filter by values. nil hides nothing.
	Mask func(ctx context.Context) bool
	// Process answers Status, ReloadRules and Drain; without it these answer UNIMPLEMENTED.
	Process Process
}

// Service is the admin API of one limiter. It is safe for concurrent use.
type Service struct {
	adminv1.UnimplementedAdminServiceServer

	limiter  *limiter.Limiter
	controls *controls.Controls
	access   Access
	log      *slog.Logger
	config   Config
	mask     *mask
}

// New returns a Service for l.
func New(l *limiter.Limiter, c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Access.Log = c.Log
	if c.Access.TokenFile != "" {
		if _, err := readToken(c.Access.TokenFile); err != nil {
			c.Log.Warn("no admin token is accepted until this is fixed", "error", err)
		}
	}
	if c.Controls == nil {
		c.Controls = controls.New(controls.Config{})
	}
	return &Service{limiter: l, controls: c.Controls, access: c.Access, log: c.Log, config: c, mask: newMask()}
}

// Register registers the service on a server. If the API is off it must not be registered; callers then get
// UNIMPLEMENTED.
func (s *Service) Register(r grpc.ServiceRegistrar) { adminv1.RegisterAdminServiceServer(r, s) }

// ListRules lists the rules currently in use.
func (s *Service) ListRules(ctx context.Context, q *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	return serve(ctx, s, q, look, s.listRules)
}

// Explain says what ShouldRateLimit would answer to a request now, and why.
func (s *Service) Explain(ctx context.Context, q *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return serve(ctx, s, q, look, s.explain)
}

// Peek returns the state of the counter of one descriptor.
func (s *Service) Peek(ctx context.Context, q *adminv1.PeekRequest) (*adminv1.PeekResponse, error) {
	return serve(ctx, s, q, look, s.peek)
}

// Reset forgets what the counter of one descriptor has counted.
func (s *Service) Reset(ctx context.Context, q *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	return serve(ctx, s, q, change, s.reset)
}

// Block has what a descriptor matches refused for a while.
func (s *Service) Block(ctx context.Context, q *adminv1.BlockRequest) (*adminv1.BlockResponse, error) {
	return serve(ctx, s, q, change, s.block)
}

// Allow has what a descriptor matches pass for a while.
func (s *Service) Allow(ctx context.Context, q *adminv1.AllowRequest) (*adminv1.AllowResponse, error) {
	return serve(ctx, s, q, change, s.allowFor)
}

// Limit puts another number in force for a while.
func (s *Service) Limit(ctx context.Context, q *adminv1.LimitRequest) (*adminv1.LimitResponse, error) {
	return serve(ctx, s, q, change, s.limit)
}

// Lift ends controls before their time.
func (s *Service) Lift(ctx context.Context, q *adminv1.LiftRequest) (*adminv1.LiftResponse, error) {
	return serve(ctx, s, q, change, s.lift)
}

// ListControls lists the controls in force.
func (s *Service) ListControls(ctx context.Context, q *adminv1.ListControlsRequest) (*adminv1.ListControlsResponse, error) {
	return serve(ctx, s, q, look, s.listControls)
}

// Grant gives hits back to the counter of one descriptor.
func (s *Service) Grant(ctx context.Context, q *adminv1.GrantRequest) (*adminv1.GrantResponse, error) {
	return serve(ctx, s, q, change, s.grant)
}

// Top returns the busiest or the most refused descriptors.
func (s *Service) Top(ctx context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	return serve(ctx, s, q, look, s.top)
}

// What a method does.
const (
	look   = false
	change = true
)

// serve answers q with f if the caller may call, and turns errors into statuses.
func serve[Q, A any](ctx context.Context, s *Service, q Q, changes bool, f func(context.Context, Q) (A, error)) (A, error) {
	var none A
	if err := s.access.allow(ctx, changes); err != nil {
		return none, err
	}
	a, err := f(ctx, q)
	if _, ok := status.FromError(err); err != nil && ok {
		return none, err
	}
	if err != nil {
		return none, statusOf(ctx, err)
	}
	return a, nil
}
