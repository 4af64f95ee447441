package limiter

import "github.com/ratelimitd/ratelimitd/internal/leaf/count"

// Metrics creates the counters of a [Limiter]. Calls with equal arguments return the same counter. It must be safe for concurrent use.
type Metrics interface {
	Rule(k count.Key) *count.Rule
	Count(m Metric, labels ...string) *count.Counter
}

// Metric identifies a counter. The process chooses its name.
type Metric uint8

// The metrics, with their labels.
const (
	ServiceErrors    Metric = iota // requests that are invalid, or arrived before the rules
	BackendErrors                  // requests without a verdict, because the backend failed
	RefundErrors                   // failed refunds
	GlobalShadow                   // requests admitted only because of SHADOW_MODE
	UnknownDomains                 // domain: descriptors of requests for a domain without rules
	Decisions                      // domain, class: requests
	ControlDecisions               // ID, kind: descriptors decided by a control
	Fallbacks                      // policy, rule: descriptors decided by on_failure
	OverridesIgnored               // domain, reason: overrides of requests
	Sheds                          // domain, reason: shed requests
	Reservations                   // domain, outcome
	ReservationHits                // action, domain
	Mistakes                       // mistake, rule: calls
)
