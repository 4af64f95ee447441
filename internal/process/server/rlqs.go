package server

import (
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// serveRLQS registers the service of clients that decide by themselves.
func (v *Server) serveRLQS() {
	c := rlqs.Config{
		Shared: countersAlone(&v.settings) == "", Rows: v.store.rows, MaxAge: v.settings.GRPC.MaxAge, Log: v.log,
		Memory: v.settings.GRPC.RLQSMemory, AddressShare: v.settings.GRPC.AddressShare,
	}
	if v.observer != nil {
		c.Decided = v.observer.Divided
	}
	v.rlqs = rlqs.New(v.limiter, c)
	v.rlqs.Register(v.grpc)
	v.registry.Source(v.countRLQS)
}

// countRLQS reports what there is of that service, once it was used.
func (v *Server) countRLQS(to *stats.Values) {
	n, streams, buckets := v.rlqs.Counts()
	if n.Assigned == 0 && n.Unknown == 0 && n.Unserved == 0 && streams == 0 {
		return
	}
	to.Gauge(stats.RLQSStreams, float64(streams))
	to.Gauge(stats.RLQSBuckets, float64(buckets))
	to.Counter(stats.RLQSAssignmentsTotal, n.Assigned)
	to.Counter(stats.RLQSUnservedTotal, n.Unserved, "bound")
	to.Counter(stats.RLQSUnservedTotal, n.Unknown, "unknown")
	for domain, r := range n.Requests {
		to.Counter(stats.RLQSRequestsTotal, r.Allowed, domain, "allowed")
		to.Counter(stats.RLQSRequestsTotal, r.Denied, domain, "denied")
	}
}

// Divided implements [admin.Process].
func (v *Server) Divided(want func(domain string, entries []descriptors.Entry) bool, most int) (out []admin.Divided) {
	for _, b := range v.rlqs.Status(want, most) {
		d := admin.Divided{
			Domain: b.Domain, Entries: b.Entries, Answer: b.Shares.Answer, Strict: b.Strict, Rate: b.Rate,
			Capacity: b.Shares.Capacity, Part: b.Shares.Part, Left: b.Shares.Left, Assigned: b.Assigned, Total: b.TotalHolders,
		}
		for _, h := range b.Holders {
			d.Clients = append(d.Clients, admin.DividedClient{Name: h.ID, State: h.State, Weight: h.Weight, Demand: h.Demand, Share: h.Share})
		}
		out = append(out, d)
	}
	return out
}
