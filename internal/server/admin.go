package server

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/admin"
	"github.com/ratelimitd/ratelimitd/internal/stats"
)

// serveAdmin registers the admin API on the gRPC server, and makes its pages, if it is on. All ports are open.
func (v *Server) serveAdmin(ctx context.Context) error {
	v.guard = admin.NewGuard(func() {})
	if !v.settings.Admin.On {
		return nil
	}
	denied := v.registry.Counter(stats.AdminDeniedTotal)
	v.guard = admin.NewGuard(func() { denied.Add(1) })
	a := admin.New(v.limiter, admin.Config{
		Access:   v.access(v.listeners.grpc.Addr(), "GRPC_HOST"),
		Controls: v.controls,
		Tenants:  v.tenants,
		Alone:    countersAlone(&v.settings),
		Log:      v.log,
		Audit:    v.config.Audit,
		Changed: func(method string, done bool) {
			result := "refused"
			if done {
				result = "done"
			}
			v.registry.Counter(stats.AdminChangesTotal, method, result).Add(1)
		},
		Top:     v.top,
		Watch:   v.watched,
		Process: v,
	})
	a.Register(v.grpc)
	var err error
	if v.overHTTP, err = a.Handler(ctx, v.access(v.listeners.debug.Addr(), "DEBUG_HOST")); err != nil {
		return fmt.Errorf("serving the admin API over HTTP: %w", err)
	}
	return nil
}

// access returns who may call the admin API, and take profiles, on a listener whose address comes from the named variable.
func (v *Server) access(at net.Addr, host string) admin.Access {
	s := &v.settings.Admin
	return admin.Access{
		TokenFile:      s.TokenFile,
		ReadTokenFile:  s.ReadTokenFile,
		Names:          namesIn(s.SANs),
		ReadNames:      namesIn(s.ReadSANs),
		ReadSeesValues: s.ReadSeesValues,
		InClear:        s.TokensInClear,
		Listener:       at,
		Host:           host,
		Guard:          v.guard,
		Log:            v.log,
	}
}

// namesIn returns names without the spaces around them, and without empty ones.
func namesIn(names []string) (all []string) {
	for _, name := range names {
		if name = strings.TrimSpace(name); name != "" {
			all = append(all, name)
		}
	}
	return all
}
