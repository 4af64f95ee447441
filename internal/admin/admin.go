// Package admin is the admin API on the wire: it lists the rules that are served, explains what a request meets, looks at
// counters and resets them.
//
// It stands on the same gRPC server, and behind the same port, as ShouldRateLimit, so it guards itself: each method first
// asks whether the connection comes from this machine, or brings the token of a file. What the methods find out they ask
// the limiter, which takes the path that requests take; nothing here knows a backend.
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
	// TokenFile is a file with a token that lets callers from other machines in (ADMIN_TOKEN_FILE). It is read with each
	// call that brings a token, so it may change. While it is empty or cannot be read no token is right, which New logs too.
	TokenFile string
	// Log is told of each reset, and of a TokenFile that cannot be used; nil discards.
	Log *slog.Logger
}

// Service is the admin API of one limiter. It is safe for concurrent use.
type Service struct {
	adminv1.UnimplementedAdminServiceServer

	limiter *limiter.Limiter
	access  access
	log     *slog.Logger
}

// New makes a Service of l.
func New(l *limiter.Limiter, c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TokenFile != "" {
		if _, err := readToken(c.TokenFile); err != nil {
			c.Log.Warn("until this is mended no admin token is right", "error", err)
		}
	}
	return &Service{limiter: l, access: access{tokenFile: c.TokenFile, log: c.Log}, log: c.Log}
}

// Register puts the service on a server. Where the API is off it is not to be registered; callers get UNIMPLEMENTED then.
func (s *Service) Register(r grpc.ServiceRegistrar) { adminv1.RegisterAdminServiceServer(r, s) }

// ListRules lists the rules that are served now.
func (s *Service) ListRules(ctx context.Context, q *adminv1.ListRulesRequest) (*adminv1.ListRulesResponse, error) {
	return serve(ctx, s, q, s.listRules)
}

// Explain tells what ShouldRateLimit would answer to a request now, and why.
func (s *Service) Explain(ctx context.Context, q *adminv1.ExplainRequest) (*adminv1.ExplainResponse, error) {
	return serve(ctx, s, q, s.explain)
}

// Peek tells how the counter of one descriptor stands.
func (s *Service) Peek(ctx context.Context, q *adminv1.PeekRequest) (*adminv1.PeekResponse, error) {
	return serve(ctx, s, q, s.peek)
}

// Reset forgets what the counter of one descriptor has counted.
func (s *Service) Reset(ctx context.Context, q *adminv1.ResetRequest) (*adminv1.ResetResponse, error) {
	return serve(ctx, s, q, s.reset)
}

// serve answers q with f where the caller may call, and turns errors into statuses.
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
