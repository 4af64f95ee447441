package stats

import (
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Count implements [limiter.Metrics].
func (r *Registry) Count(m limiter.Metric, labels ...string) *count.Counter {
	switch m {
	case limiter.ServiceErrors:
		return r.Counter(ShouldRateLimitError, "service_error")
	case limiter.BackendErrors:
		return r.Counter(ShouldRateLimitError, "redis_error")
	}
	return r.Counter([...]Metric{
		limiter.RefundErrors:     RefundErrorsTotal,
		limiter.GlobalShadow:     GlobalShadowMode,
		limiter.UnknownDomains:   DomainNotFound,
		limiter.Decisions:        DecisionsTotal,
		limiter.ControlDecisions: ControlDecisionsTotal,
		limiter.Fallbacks:        BackendFallbackTotal,
		limiter.OverridesIgnored: OverrideIgnoredTotal,
		limiter.Sheds:            ShedTotal,
		limiter.Reservations:     ReservationsTotal,
		limiter.ReservationHits:  ReservationHitsTotal,
	}[m], labels...)
}
