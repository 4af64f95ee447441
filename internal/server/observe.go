package server

import (
	"context"
	"net"

	"google.golang.org/grpc/peer"

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
	var from net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr
	} else {
		from = web.Caller(ctx)
	}
	switch {
	case from == nil:
		return "unknown"
	case from.Network() == "unix":
		return "unix socket"
	default:
		return from.String()
	}
}
