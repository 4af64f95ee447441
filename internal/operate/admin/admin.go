// Package admin implements the admin API over gRPC, as JSON over HTTP, and for the console in this process. Its messages are
// generated from proto/ratelimitd/admin/v1.
//
// Every call passes through admit. There an [access.Policy] identifies the caller and checks whether it may read or change state,
// and the domains of its token limit the domains of the call. Methods that list entries filter them by [access.Who.Sees], and
// [Entries] hides values of end users. Calls wait for their turn, so that no caller slows down decisions or other callers. Each
// change is recorded in the audit log. A change that is repeated with its x-request-id returns its first answer.
//
// The methods use the limiter, which treats them like requests, and the [Process]. They do not depend on backends.
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

// Config configures a Service. The zero value lets callers on this machine read, and permits no changes.
type Config struct {
	// Access decides who may read and who may change state. New logs a TokenFile that cannot be used.
	Access access.Policy
	// Controls are changed by Block, Allow, Limit, and Lift; nil means controls without effect.
	Controls *controls.Controls
	// Acts is the log that Audit lists; nil means a log of this service only.
	Acts *audit.Log
	// Tenants is changed by SetTenant, UnsetTenant, and ImportTenants; nil means a read-only table.
	Tenants *tenants.Tenants
	// UnsharedCounters explains why replicas do not share counters; empty if they do.
	UnsharedCounters string
	// Log receives messages of Access, and Audit each change; nil discards.
	Log, Audit *slog.Logger
	// Changed is called after each call that made a change or failed; nil means no callback.
	Changed func(method string, done bool)
	// Observer serves Top and Watch. Required.
	Observer *observe.Observer
	// Process serves Status, ReloadRules, and Drain. Required.
	Process Process
}

// Service implements the admin API for one limiter. It is safe for concurrent use.
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

// Register registers the service on a server. Callers of an unregistered service get UNIMPLEMENTED.
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

// within returns guard wrapped in the server's interceptor outer, which may be nil.
func (s *Service) within(outer grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	if outer == nil {
		return s.guard
	}
	return func(ctx context.Context, q any, info *grpc.UnaryServerInfo, f grpc.UnaryHandler) (any, error) {
		return outer(ctx, q, info, func(ctx context.Context, q any) (any, error) { return s.guard(ctx, q, info, f) })
	}
}

// methods holds the unary methods, which run after guard, and Watch, a stream, which calls admit itself.
type methods struct {
	adminv1.UnimplementedAdminServiceServer
	*Service
}

// guard checks whether the caller may make the call q, answers it with f, and converts errors to statuses.
func (s *Service) guard(ctx context.Context, q any, _ *grpc.UnaryServerInfo, f grpc.UnaryHandler) (any, error) { //nolint:ireturn // signature of grpc
	m := q.(proto.Message) // all requests are proto messages
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

// changes reports whether a call of q may change state. It is true for unknown methods.
func changes(q proto.Message) bool {
	switch q.(type) {
	case *adminv1.ListRulesRequest, *adminv1.ExplainRequest, *adminv1.PeekRequest, *adminv1.ListControlsRequest, *adminv1.AuditRequest,
		*adminv1.TopRequest, *adminv1.WatchRequest, *adminv1.StatusRequest, *adminv1.GetTenantRequest, *adminv1.ListTenantsRequest:
		return false
	}
	return true
}

// admit checks whether the caller of ctx may make the call q. It returns the caller, also in the context. With an error, the
// caller may still be known.
func (s *Service) admit(ctx context.Context, q proto.Message) (context.Context, *access.Who, error) {
	who, err := s.allow(ctx, changes(q))
	who.Mask = s.mask
	if err == nil {
		err = s.about(&who, q)
	}
	return context.WithValue(ctx, whoKey{}, &who), &who, err
}

// allow identifies the caller and checks its permission to read or change state.
func (s *Service) allow(ctx context.Context, change bool) (access.Who, error) {
	if denied, ok := ctx.Value(deniedKey{}).(*deniedError); ok {
		return denied.who, denied.err
	}
	return s.policy.AllowCall(ctx, change)
}

// pageSize returns the page size for a caller that asks for asked; 0 means usual. The size is at most most.
func pageSize(asked int32, usual, most int) (int, error) {
	if asked < 0 {
		return 0, invalidf("page_size is %d: want 1 to %d, or 0 for %d", asked, most, usual)
	}
	return min(cmp.Or(int(asked), usual), most), nil
}
