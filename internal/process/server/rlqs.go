package server

import (
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// serveRLQS registers the RLQS service, for clients that decide locally.
func (v *Server) serveRLQS() {
	c := rlqs.Config{
		Shared: v.store.unsharedCounters == "", Rows: v.store.rows, MaxAge: v.settings.GRPC.MaxAge, Log: v.log,
		Memory: v.settings.GRPC.RLQSMemory, AddressShare: v.settings.GRPC.AddressShare,
	}
	if v.observer != nil {
		c.Decided = v.observer.Divided
	}
	v.rlqs = rlqs.New(v.limiter, c)
	v.rlqs.Register(v.grpc)
	v.registry.Source(v.countRLQS)
}

// countRLQS reports the metrics of RLQS once it has been used.
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
func (v *Server) Divided(who *access.Who, want func(domain string, entries []descriptors.Entry) bool) (out []*adminv1.DividedLimit) {
	for _, b := range v.rlqs.Status(want, admin.MaxShown) {
		d := &adminv1.DividedLimit{
			Domain: b.Domain, Entries: admin.Entries(who, b.Entries), Answer: b.Shares.Answer, IsStrict: b.Strict, Rate: b.Rate,
			Capacity: b.Shares.Capacity, Part: b.Shares.Part, Left: b.Shares.Left, Assigned: b.Assigned, TotalClients: uint32(b.TotalHolders),
		}
		for _, h := range b.Holders {
			d.Clients = append(d.Clients, &adminv1.DividedClient{Name: h.ID, State: h.State, Weight: h.Weight, Demand: h.Demand, Share: h.Share})
		}
		out = append(out, d)
	}
	return out
}
