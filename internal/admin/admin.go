// Package admin implements the wire protocol of the admin API: it lists the rules in use, explains how a request would
// be decided, looks at counters and resets them.
//
// It is served on the same gRPC server and port as ShouldRateLimit, so it has to guard itself: each method first checks
// that the connection comes from this machine, or that the call brings the token from a file. The methods ask the
// limiter, which does what it does for requests; nothing here knows about backends.
package admin

import (
	"context"
	"log/slog"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Config says who may use the admin API. The zero value lets callers on the same machine in, and nobody else.
type Config struct {
	// TokenFile is a file with a token that lets callers from other machines in (ADMIN_TOKEN_FILE). It is read for each
	// call with a token, so it may change. While it is empty or cannot be read no token is accepted; New logs that too.
	TokenFile string
	// Log gets each reset, and a TokenFile that cannot be used; nil discards.
	Log *slog.Logger
}

// Service is the admin API of one limiter. It is safe for concurrent use.
type Service struct {
	adminv1.UnimplementedAdminServiceServer

	limiter *limiter.Limiter
	access  access
	log     *slog.Logger
}

// New returns a Service for l.
func New(l *limiter.Limiter, c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TokenFile != "" {
		if _, err := readToken(c.TokenFile); err != nil {
			c.Log.Warn("no admin token is accepted until this is fixed", "error", err)
		}
	}
	return &Service{limiter: l, access: access{tokenFile: c.TokenFile, log: c.Log}, log: c.Log}
}

// Register registers the service on a server. If the API is off it must not be registered; callers then get
// UNIMPLEMENTED.
func (s *Service) Register(r grpc.ServiceRegistrar) { adminv1.RegisterAdminServiceServer(r, s) }

// ListRules lists the rules currently in use.
func (s *Service) ListRules(ctx context.Context, q *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	return serve(ctx, s, q, s.listRules)
}

// Explain says what ShouldRateLimit would answer to a request now, and why.
func (s *Service) Explain(ctx context.Context, q *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return serve(ctx, s, q, s.explain)
}

// Peek returns the state of the counter of one descriptor.
func (s *Service) Peek(ctx context.Context, q *adminv1.PeekRequest) (*adminv1.PeekResponse, error) {
	return serve(ctx, s, q, s.peek)
}

// Reset forgets what the counter of one descriptor has counted.
func (s *Service) Reset(ctx context.Context, q *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	return serve(ctx, s, q, s.reset)
}

// serve answers q with f if the caller may call, and turns errors into statuses.
func serve[Q, A any](ctx context.Context, s *Service, q Q, f func(context.Context, Q) (A, error)) (A, error) {
	var none A
	if err := s.access.allow(ctx); err != nil {
		return none, err
	}
	a, err := f(ctx, q)
	if err != nil {
		return none, statusOf(ctx, err)
	}
	return a, nil
}
