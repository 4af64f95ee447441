package server

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/console"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/process/adminsocket"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
)

// serveAdmin registers the admin API on the gRPC server and builds its HTTP handler and the console, unless ADMIN is false. All
// ports must be open.
func (v *Server) serveAdmin(ctx context.Context) error {
	v.guard = access.NewGuard(func() {})
	if !v.settings.Admin.On {
		return nil
	}
	denied := v.registry.Counter(stats.AdminDeniedTotal)
	v.guard = access.NewGuard(func() { denied.Add(1) })
	policy := v.access(v.listeners.grpc.Addr(), "GRPC_HOST")
	policy.Socket = v.adminSocket() // the gRPC server also serves the admin socket
	a := admin.New(v.limiter, admin.Config{
		Access:           policy,
		Controls:         v.controls,
		Acts:             v.audit,
		Tenants:          v.tenants,
		UnsharedCounters: v.store.unsharedCounters,
		Log:              v.log,
		Audit:            v.config.Audit,
		Changed: func(method string, done bool) {
			result := "failed"
			if done {
				result = "done"
			}
			v.registry.Counter(stats.AdminChangesTotal, method, result).Add(1)
		},
		Observer: v.observer,
		Process:  v,
	})
	a.Register(v.grpc)
	policy = v.access(v.listeners.debug.Addr(), "DEBUG_HOST")
	var err error
	if v.overHTTP, err = a.Handler(ctx, policy); err != nil {
		return fmt.Errorf("serving the admin API over HTTP: %w", err)
	}
	v.history = new(console.History)
	command := "ratelimitd"
	if pod := v.config.Pod; pod != "" {
		command = "kubectl exec " + plain.Word(pod) + " -- /bin/ratelimitd"
	}
	v.console, err = console.New(console.Config{
		API: a.Client(policy), Watch: a.Watcher(policy), Sessions: &policy, History: v.history, Version: v.config.Release, Command: command,
	})
	return err
}

// remember returns the task that adds a sample per second to the console's history.
func (v *Server) remember() task.Func {
	before := v.totals()
	return task.Every("history", time.Second, func(context.Context) {
		now := v.totals()
		v.history.Add(now.since(&before))
		before = now
	})
}

// totals holds counts since the process started.
type totals struct {
	stats.Totals

	at                       time.Time
	allowed, rejected, other uint64 // requests; other counts decisions by a control or a fallback
	errors, shed             uint64
}

func (v *Server) totals() totals {
	n, by := v.shed(), v.limiter.Decisions()
	t := totals{Totals: v.registry.Totals(rls.Method), at: time.Now(), shed: n.Process + n.Store + n.Calls, rejected: by[limiter.ClassOverLimit]}
	t.allowed = by[limiter.ClassOK] + by[limiter.ClassShadow] + by[limiter.ClassLateCharge]
	t.other = by[limiter.ClassFallback] + by[limiter.ClassControl]
	for _, kind := range []string{"redis_error", "service_error"} {
		t.errors += v.registry.Counter(stats.ShouldRateLimitError, kind).Load()
	}
	return t
}

// since returns the rates per second between before and t.
func (t *totals) since(before *totals) console.Sample {
	seconds := max(t.at.Sub(before.at).Seconds(), 0.001)
	rate := func(now, then uint64) float64 { return float64(now-min(then, now)) / seconds }
	return console.Sample{
		Requests: rate(t.Calls, before.Calls),
		Allowed:  rate(t.allowed, before.allowed),
		Rejected: rate(t.rejected, before.rejected),
		Other:    rate(t.other, before.other),
		Errors:   rate(t.errors, before.errors),
		Shed:     rate(t.shed, before.shed),
		Slow:     t.Within(&before.Totals, 0.99),
	}
}

// shed returns the number of requests shed so far.
func (v *Server) shed() observe.Shed {
	return observe.Shed{Shed: v.limiter.Shed(), Calls: v.unread.Load()}
}

// access returns the policy for the admin API and profiles on the listener at. The variable named host sets the listener's
// address.
func (v *Server) access(at net.Addr, host string) access.Policy {
	s := &v.settings.Admin
	return access.Policy{
		TokenFile:      s.TokenFile,
		ReadTokenFile:  s.ReadTokenFile,
		Names:          s.SANs,
		ReadNames:      s.ReadSANs,
		ReadSeesValues: s.ReadSeesValues,
		InClear:        s.TokensInClear,
		Listener:       at,
		Host:           host,
		Guard:          v.guard,
		Log:            v.log,
	}
}

// adminSocket returns the path of the admin socket, or "" without one.
func (v *Server) adminSocket() string {
	if v.listeners.admin == nil {
		return ""
	}
	return v.listeners.admin.Addr().String()
}

// listenForAdmin opens the admin socket if the admin API is on. Without the socket, only a token permits changes.
func (v *Server) listenForAdmin(ctx context.Context) {
	if !v.settings.Admin.On {
		return
	}
	port := v.settings.GRPC.Port
	if at, ok := v.listeners.grpc.Addr().(*net.TCPAddr); ok {
		port = strconv.Itoa(at.Port)
	}
	var err error
	at := adminsocket.Server{Configured: v.settings.Admin.Socket, UDS: v.settings.GRPC.UDS, Port: port}
	if v.listeners.admin, err = at.Listen(ctx); err != nil {
		v.log.WarnContext(ctx, "without the admin socket, commands on this machine need a token to change anything", "error", err)
	}
}

// caller returns the client address of the gRPC or HTTP request of ctx, as text.
func caller(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return access.AddressText(p.Addr)
	}
	return access.AddressText(web.Caller(ctx))
}
