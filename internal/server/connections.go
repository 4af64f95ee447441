package server

import (
	"net"

	"github.com/ratelimitd/ratelimitd/internal/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/stats"
)

// ownFiles is how many files are kept back for rules, certificates, stores and the like.
const ownFiles = 96

// bounds are how many connections each listener may have.
type bounds struct{ grpc, http, debug int }

// boundsOf divides files among the listeners, so that calls do not take those of health, and none those of a reload.
func boundsOf(files int) bounds {
	const listeners = 4 // each of which has one more connection for a moment
	left := files - min(ownFiles, files/2) - listeners
	b := bounds{http: clamp(left / 8), debug: clamp(left / 16)}
	b.grpc = clamp(left - b.http - 2*b.debug)
	return b
}

func clamp(n int) int { return max(2, min(n, netlimit.MaxConnections)) }

// bound bounds the connections of all listeners, and has health, the log and metrics tell of those of gRPC.
func (v *Server) bound() {
	n := boundsOf(maxFiles())
	if n.grpc < netlimit.MaxConnections {
		v.log.Warn("fewer gRPC connections are possible than usual: raise the limit of open files (RLIMIT_NOFILE)",
			"connections", n.grpc, "usual", netlimit.MaxConnections)
	}
	component := v.health.Add("connections", true, "")
	closed := map[string]*stats.Counter{}
	for _, reason := range []string{"idle", "address"} {
		closed[reason] = v.registry.Counter(stats.ConnectionsClosedTotal, reason)
	}
	l := netlimit.Listen(v.listeners.grpc, netlimit.Config{
		Max:        n.grpc,
		PerAddress: perAddress(n.grpc, v.settings.GRPC.AddressShare),
		Closed:     func(reason string) { closed[reason].Add(1) },
		Reached: func(what string) {
			if what == "" {
				component.Set(true, "")
				v.log.Info("there is room for connections again")
				return
			}
			component.Degrade(what)
			v.log.Warn("too many connections", "reason", what)
		},
	})
	v.registry.Gauge(stats.Connections, func() float64 { return float64(l.Open()) })
	v.listeners.grpc = l
	v.listeners.http = netlimit.Beginnings(v.listeners.http, v.httpBegan())
	for at, most := range map[*net.Listener]int{&v.listeners.http: n.http, &v.listeners.debug: n.debug, &v.listeners.prometheus: n.debug} {
		if *at != nil {
			*at = netlimit.Listen(*at, netlimit.Config{Max: most})
		}
	}
}

// perAddress returns how many of so many connections one address may have; 0 means all.
func perAddress(most int, share float64) int {
	if share == 0 || share >= 1 {
		return 0
	}
	return max(1, int(share*float64(most)))
}
