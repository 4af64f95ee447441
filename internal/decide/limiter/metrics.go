package limiter

import "github.com/ratelimitd/ratelimitd/internal/leaf/count"

// Metrics makes the counters of a [Limiter] where the process shows them. Equal arguments get the same counter. It must be safe for
// concurrent use.
type Metrics interface {
	Rule(k count.Key) *count.Rule
	Count(m Metric, labels ...string) *count.Counter
}

// Metric identifies a counter. The process chooses its name.
type Metric uint8

// The metrics, each with its labels.
const (
	ServiceErrors    Metric = iota // requests that are invalid, or came before the rules
	BackendErrors                  // requests without a verdict, because the backend failed
	RefundErrors                   // refunds that failed
	GlobalShadow                   // requests that only SHADOW_MODE admitted
	UnknownDomains                 // domain: descriptors of requests for a domain without rules
	Decisions                      // domain, class: requests
	ControlDecisions               // ID, kind: descriptors that a control decided
	Fallbacks                      // policy, rule: descriptors that on_failure decided
	OverridesIgnored               // domain, reason: limits of requests
	Sheds                          // domain, reason: requests for which there was no time
	Reservations                   // domain, outcome
	ReservationHits                // action, domain
)
