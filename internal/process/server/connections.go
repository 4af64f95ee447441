package server

import (
	"net"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
)

// ownFiles is the number of file descriptors reserved for rules, certificates, backends, and the like.
const ownFiles = 96

// bounds holds the maximum number of connections of each listener.
type bounds struct{ grpc, http, debug int }

// boundsOf divides file descriptors among the listeners: gRPC connections leave some for health checks, and all listeners leave
// some for reloads.
func boundsOf(files int) bounds {
	const listeners = 4 // each accepts one connection over its bound before closing it
	left := files - min(ownFiles, files/2) - listeners
	b := bounds{http: clamp(left / 8), debug: clamp(left / 16)}
	b.grpc = clamp(left - b.http - 2*b.debug)
	return b
}

func clamp(n int) int { return max(2, min(n, netlimit.MaxConnections)) }

// bound limits the connections of all listeners, and reports those of gRPC to health, the log, and metrics.
func (v *Server) bound() {
	n := boundsOf(maxFiles())
	if n.grpc < netlimit.MaxConnections {
		v.log.Warn("fewer gRPC connections are possible than usual: raise the limit on open files (RLIMIT_NOFILE)",
			"connections", n.grpc, "usual", netlimit.MaxConnections)
	}
	share := v.settings.GRPC.AddressShare
	l := netlimit.Listen(v.listeners.grpc, netlimit.Config{
		Max:        n.grpc,
		PerAddress: perAddress(n.grpc, share),
		MaxWaiting: v.settings.GRPC.MaxWaiting,
		Observer: &clients{
			v:         v,
			component: v.health.Add("connections", true, ""),
			closed: map[string]*count.Counter{
				"idle": v.registry.Counter(stats.ConnectionsClosedTotal, "idle"), "address": v.registry.Counter(stats.ConnectionsClosedTotal, "address"),
			},
			shed: v.registry.Counter(stats.ShedTotal, "", "waiting"),
		},
	})
	v.registry.Gauge(stats.Connections, func() float64 { return float64(l.Open()) })
	v.listeners.grpc = l
	v.listeners.http = boundHTTP(v.listeners.http, n.http, share, v.httpBegan)
	for at, most := range map[*net.Listener]int{&v.listeners.debug: n.debug, &v.listeners.prometheus: n.debug} {
		if *at != nil {
			*at = boundHTTP(*at, most, share, nil)
		}
	}
}

// boundHTTP limits the connections of an HTTP listener, so that slow clients cannot keep probes from connecting.
func boundHTTP(l net.Listener, most int, share float64, began func(net.Addr, netlimit.Protocol)) net.Listener {
	return netlimit.Listen(l, netlimit.Config{Max: most, PerAddress: perAddress(most, share), Began: began})
}

// clients reports events of the gRPC connection limits to health, the log, and metrics.
type clients struct {
	v         *Server
	component *health.Part
	closed    map[string]*count.Counter // by reason
	shed      *count.Counter
}

// Reached implements netlimit.Observer.
func (c *clients) Reached(what string) {
	if what == "" {
		c.component.Set(true, "")
		c.v.log.Info("new connections fit again")
		return
	}
	c.component.Degrade(what)
	c.v.log.Warn("too many connections", "reason", what)
}

// Closed implements netlimit.Observer.
func (c *clients) Closed(reason string) { c.closed[reason].Add(1) }

// Shed implements netlimit.Observer.
func (c *clients) Shed(calls int) { c.shed.Add(uint64(calls)) } //nolint:gosec // never negative

// Flood implements netlimit.Observer.
func (c *clients) Flood(on bool) {
	if on {
		c.v.log.Warn("too many calls wait for their message, so some are shed: clients send headers and nothing else",
			"setting", "GRPC_MAX_WAITING_CALLS="+strconv.Itoa(c.v.settings.GRPC.MaxWaiting))
	} else {
		c.v.log.Info("the number of calls waiting for their message is back to normal")
	}
}

// perAddress returns the number of connections that one address may hold, out of most; 0 means no limit.
func perAddress(most int, share float64) int {
	if share == 0 || share >= 1 {
		return 0
	}
	return max(1, int(share*float64(most)))
}
