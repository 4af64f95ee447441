package stats

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// Count implements [limiter.Metrics].
func (r *Registry) Count(m limiter.Metric, labels ...string) *count.Counter {
	row := [...]struct {
		metric Metric
		first  []string // labels
	}{
		limiter.ServiceErrors:    {ShouldRateLimitError, []string{"service_error"}},
		limiter.BackendErrors:    {ShouldRateLimitError, []string{"redis_error"}},
		limiter.RefundErrors:     {metric: RefundErrorsTotal},
		limiter.GlobalShadow:     {metric: GlobalShadowMode},
		limiter.UnknownDomains:   {metric: DomainNotFound},
		limiter.Decisions:        {metric: DecisionsTotal},
		limiter.ControlDecisions: {metric: ControlDecisionsTotal},
		limiter.Fallbacks:        {metric: BackendFallbackTotal},
		limiter.OverridesIgnored: {metric: OverrideIgnoredTotal},
		limiter.Sheds:            {metric: ShedTotal},
		limiter.Reservations:     {metric: ReservationsTotal},
		limiter.ReservationHits:  {metric: ReservationHitsTotal},
		limiter.Mistakes:         {metric: MistakesTotal},
	}[m]
	return r.Counter(row.metric, slices.Concat(row.first, labels)...)
}
