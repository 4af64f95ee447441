// Package admin implements the wire protocol of the admin API: it lists the rules in use, explains how a request would
// be decided, looks at counters, resets them and refunds hits, and puts controls in force.
//
// It is served on the same gRPC server and port as ShouldRateLimit, so it has to guard itself: before each method it checks
// that the call brings the token from a file or, if there is none, that it comes from this machine. The methods ask the
// limiter, which does what it does for requests; nothing here knows about backends.
//
// This package is optional: the core works without it.
package admin

import (
	"cmp"
	"context"
	"log/slog"
	"slices"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Config says who may use the admin API. The zero value lets callers on the same machine read, and no one change anything.
type Config struct {
	// Access says who may call, and who may reset counters. New logs a TokenFile that cannot be used.
	Access Access
	// Controls are what Block, Allow, Limit and Lift change; nil stands for controls that nothing obeys.
	Controls *controls.Controls
	// Acts are what Audit lists; nil stands for a list of this service alone.
	Acts *audit.Log
	// Tenants are what SetTenant and the like change; nil stands for a table that cannot be changed.
	Tenants *tenants.Tenants
	// Alone is why the counters are those of this process alone; empty if replicas share them.
	Alone string
	// Log gets what Access logs, and Audit each change; nil discards.
	Log, Audit *slog.Logger
	// Changed is called for each call that changed something, or failed; it may be nil.
	Changed func(method string, done bool)
	// Observer answers Top and Watch; without it these answer UNIMPLEMENTED.
	Observer *observe.Observer
	// Process answers Status, ReloadRules and Drain; without it these answer UNIMPLEMENTED.
	Process Process
}

// Service is the admin API of one limiter. It is safe for concurrent use.
type Service struct {
	limiter  *limiter.Limiter
	controls *controls.Controls
	access   Access
	audit    *slog.Logger
	config   Config
	mask     *mask
	changes  *changes
	turns    *turns
}

// New returns a Service for l.
func New(l *limiter.Limiter, c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Acts == nil {
		c.Acts = audit.New(nil, c.Log)
	}
	if c.Audit == nil {
		c.Audit = slog.New(slog.DiscardHandler)
	}
	c.Access.Log = c.Log
	c.Access.tokens("ADMIN_TOKEN_FILE", c.Access.TokenFile) // so that the log says at the start what is wrong with them
	c.Access.tokens("ADMIN_READ_TOKEN_FILE", c.Access.ReadTokenFile)
	if c.Controls == nil {
		c.Controls = controls.New(controls.Config{})
	}
	return &Service{
		limiter: l, controls: c.Controls, access: c.Access, audit: c.Audit, config: c, mask: newMask(), changes: new(changes), turns: newTurns(),
	}
}

// Register registers the service on a server. If the API is off it must not be registered; callers then get
// UNIMPLEMENTED.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	desc := adminv1.AdminService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error, outer grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(srv, ctx, decode, s.within(outer))
		}
	}
	r.RegisterService(&desc, methods{Service: s})
}

// within is guard as what an interceptor of a server is around; nil is none.
func (s *Service) within(outer grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if outer == nil {
		return s.guard
	}
	return func(ctx context.Context, q any, info *grpc.UnaryServerInfo, f grpc.UnaryHandler) (any, error) {
		return outer(ctx, q, info, func(ctx context.Context, q any) (any, error) { return s.guard(ctx, q, info, f) })
	}
}

// methods are those of the API, for callers whom guard has let in. Watch, which answers with a stream, has to guard itself.
type methods struct {
	adminv1.UnimplementedAdminServiceServer
	*Service
}

// guard answers q with f if its caller may make the call, and turns errors into statuses.
func (s *Service) guard(ctx context.Context, q any, _ *grpc.UnaryServerInfo, f grpc.UnaryHandler) (any, error) { //nolint:ireturn // as grpc has it
	r := q.(request) // as all messages are
	switch r.(type) {
	case *adminv1.ListRulesRequest, *adminv1.ExplainRequest, *adminv1.PeekRequest, *adminv1.ListControlsRequest, *adminv1.AuditRequest,
		*adminv1.TopRequest, *adminv1.StatusRequest, *adminv1.GetTenantRequest, *adminv1.ListTenantsRequest:
		return s.look(ctx, r, f)
	}
	return s.change(ctx, r, f)
}

// look answers q, which changes nothing, if the caller may look.
func (s *Service) look(ctx context.Context, q request, f grpc.UnaryHandler) (any, error) { //nolint:ireturn // likewise
	who, err := s.access.allow(ctx, false)
	var end func()
	if err == nil {
		end, err = s.begin(ctx, &who, q)
	}
	if err != nil {
		return nil, err
	}
	defer end()
	a, err := f(context.WithValue(ctx, whoKey{}, who), q)
	return answered(ctx, a, err)
}

// begin returns an error for a call that is not for who, or whose turn did not come. Otherwise end has to be called after it.
func (s *Service) begin(ctx context.Context, who *Who, q request) (end func(), err error) {
	if err := s.about(who, q); err != nil {
		return nil, err
	}
	return s.turns.take(ctx, who)
}

// pageSize returns how long a page may be for a caller who asks for so much, where 0 stands for usual.
func pageSize(asked int32, usual, most int) (int, error) {
	if asked < 0 {
		return 0, invalidf("page_size is %d: want 1 to %d, or 0 for %d", asked, most, usual)
	}
	return min(cmp.Or(int(asked), usual), most), nil
}

// masks returns what hides values of end users from the caller of ctx, who was let in; nil hides nothing.
func (s *Service) masks(ctx context.Context) *mask {
	if whoOf(ctx).Masked {
		return s.mask
	}
	return nil
}
