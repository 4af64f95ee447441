package server

import (
	"context"

	"google.golang.org/grpc/peer"

	"github.com/ratelimitd/ratelimitd/internal/admin"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/internal/top"
	"github.com/ratelimitd/ratelimitd/internal/watch"
	"github.com/ratelimitd/ratelimitd/internal/web"
)

// observe makes what the admin API shows of requests.
func (v *Server) observe() {
	v.top, v.watched = top.New(), watch.New(caller)
	v.registry.Gauge(stats.Watchers, func() float64 { return float64(v.watched.Count()) })
}

// caller returns the address from which the request of ctx came, over gRPC or HTTP, in words.
func caller(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return admin.AddressText(p.Addr)
	}
	return admin.AddressText(web.Caller(ctx))
}
