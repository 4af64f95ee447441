// Package admin serves the admin API, whose messages are generated from proto/ratelimitd/admin/v1, over gRPC, as JSON over HTTP, and to
// the console in this process.
//
// Each call passes through admit, whatever it came by: an [access.Policy] decides who the caller is and whether they may look or change
// something, and the domains of the caller's token which domain the call may be about. Methods that list ask [access.Who.Sees] what to leave
// out, and [Entries] hides values of end users. Calls wait for their turn, so that no caller slows down decisions or other callers. A call
// that changes something stands in the audit, and one that is made again with its x-request-id gets its first answer.
//
// The methods ask the limiter, which does what it does for requests, and the [Process]; nothing here knows about backends.
//
// This package is optional: the core works without it.
package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Config says who may use the admin API. The zero value lets callers on the same machine read, and no one change anything.
type Config struct {
	// Access says who may call, and who may reset counters. New logs a TokenFile that cannot be used.
	Access access.Policy
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
	// Changed is called for each call that changed something, or failed; nil does nothing.
	Changed func(method string, done bool)
	// Observer answers Top and Watch. It is required.
	Observer *observe.Observer
	// Process answers Status, ReloadRules and Drain. It is required.
	Process Process
}

// Service is the admin API of one limiter. It is safe for concurrent use.
type Service struct {
	limiter  *limiter.Limiter
	controls *controls.Controls
	policy   access.Policy
	audit    *slog.Logger
	config   Config
	mask     *[32]byte // see [access.Who.Hide]
	calls    *callers
	turns    *turns
}

// New returns a Service for l.
func New(l *limiter.Limiter, c Config) *Service {
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Acts = cmp.Or(c.Acts, audit.New(nil, c.Log))
	c.Audit = cmp.Or(c.Audit, slog.New(slog.DiscardHandler))
	c.Controls = cmp.Or(c.Controls, controls.New(controls.Config{}))
	if c.Changed == nil {
		c.Changed = func(string, bool) {}
	}
	c.Access.Log = c.Log
	c.Access.Check()
	mask := new([32]byte)
	_, _ = rand.Read(mask[:]) // never fails
	return &Service{
		limiter: l, controls: c.Controls, policy: c.Access, audit: c.Audit, config: c, mask: mask, calls: new(callers), turns: newTurns(),
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
	m := q.(proto.Message) // as all are
	ctx, who, err := s.admit(ctx, m)
	var end func()
	if err == nil {
		end, err = s.turns.take(ctx, who)
	}
	if err == nil {
		defer end()
	}
	if changes(m) {
		return s.change(ctx, m, f, err)
	}
	if err != nil {
		return nil, err
	}
	a, err := f(ctx, q)
	return answered(ctx, a, err)
}

// changes reports whether a call of q changes something, as a call of a method that is not known here does.
func changes(q proto.Message) bool {
	switch q.(type) {
	case *adminv1.ListRulesRequest, *adminv1.ExplainRequest, *adminv1.PeekRequest, *adminv1.ListControlsRequest, *adminv1.AuditRequest,
		*adminv1.TopRequest, *adminv1.WatchRequest, *adminv1.StatusRequest, *adminv1.GetTenantRequest, *adminv1.ListTenantsRequest:
		return false
	}
	return true
}

// admit decides whether the caller of ctx may make the call q, and says in the context that it returns who that is. With an error who
// may be known all the same.
func (s *Service) admit(ctx context.Context, q proto.Message) (context.Context, *access.Who, error) {
	who, err := s.allow(ctx, changes(q))
	who.Mask = s.mask
	if err == nil {
		err = s.about(&who, q)
	}
	return context.WithValue(ctx, whoKey{}, &who), &who, err
}

// allow returns who calls a method, or the error for one who may not.
func (s *Service) allow(ctx context.Context, change bool) (access.Who, error) {
	if denied, ok := ctx.Value(deniedKey{}).(*deniedError); ok {
		return denied.who, denied.err
	}
	return s.policy.AllowCall(ctx, change)
}

// pageSize returns how long a page may be for a caller who asks for so much, where 0 stands for usual.
func pageSize(asked int32, usual, most int) (int, error) {
	if asked < 0 {
		return 0, invalidf("page_size is %d: want 1 to %d, or 0 for %d", asked, most, usual)
	}
	return min(cmp.Or(int(asked), usual), most), nil
}
