package limiter

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Status is the answer to one descriptor.
type Status struct {
	Outcome   Outcome
	Over      bool                    // the code that Envoy gets is OVER_LIMIT: also for late charges, and in global shadow mode
	Rule      *descriptors.Rule       // nil if none matched
	RateLimit *descriptors.RateLimit  // the limit that is reported; nil if none matched, or it is replaced or unlimited
	Limits    *descriptors.RateLimits // all that the descriptor has to pass, of which RateLimit is the strictest; nil if there is only RateLimit
	Override  bool                    // RateLimit came with the request: of Rule only the path may be reported
	Quota     bool                    // in quota mode, by its rule or by Config.Quota: one of several buckets of which it is enough that one admits
	Group     int                     // in quota mode, where there are groups: the index of its own in Verdict.Groups, or AnyGroup
	Remaining uint32
	Decision  engine.Decision

	Control *override.Control // what decided, or put the number of RateLimit in force; nil if the rules decided
}

// Exceeded reports whether a limit is exceeded, whether or not that rejects the request.
func (s *Status) Exceeded() bool {
	return s.Outcome.Rejects() || s.Shadowed() || s.Outcome == ChargedLate && s.Decision.Admitted == 0
}

// Shadowed reports whether a limit is exceeded and does not reject, because of shadow mode.
func (s *Status) Shadowed() bool { return s.Outcome == Shadowed }

// Unlimited reports whether nothing limits the descriptor, because of its rule or a control.
func (s *Status) Unlimited() bool { return s.Outcome == Unlimited || s.Outcome == Allowed }

// Hidden reports whether the numbers of s are not for callers: its rule has headers: off.
func (s *Status) Hidden() bool { return s.Rule != nil && s.Rule.HeadersOff }

// RuleName returns the name of the control that decided, as kind:id, or else that of the reported limit, or the path of its
// rule if it has none. It is empty if no rule matched, and never contains anything from the request.
func (s *Status) RuleName() string {
	switch {
	case s.Control != nil:
		return s.Control.String()
	case s.RateLimit != nil && s.RateLimit.Name != "":
		return s.RateLimit.Name
	case s.Rule != nil:
		return s.Rule.Path
	default:
		return ""
	}
}

// Never reports whether a limit is exceeded, and the same cost can never be admitted.
func (s *Status) Never() bool { return s.Decision.RetryAfter == engine.Never }

// ResetSeconds returns duration_until_reset in whole seconds, rounded up: until the counter is full again or, if a limit is exceeded,
// until the same cost would be admitted, which is at least one second. If it never would be, it is the rest of the fixed window, or the
// length of a window of another algorithm: proxies tell clients to come back after that time.
func (s *Status) ResetSeconds() int64 {
	d := max(s.Decision.ResetAfter, 0)
	switch {
	case s.Never():
		if l := &s.RateLimit.Limit; l.Algorithm != engine.FixedWindow || d == 0 {
			d = time.Duration(l.Window) * time.Microsecond
		}
	case s.Exceeded():
		d = max(s.Decision.RetryAfter, 1)
	}
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

// Verdict is the answer to a Request.
type Verdict struct {
	Over     bool     // OVER_LIMIT for the whole request
	Class    Class    // what the request came to
	Statuses []Status // one for each descriptor, in order
	Header   int      // index of the status that response headers describe, which is none that is hidden; −1 if there is none

	GroupBy []string     // the keys by whose values descriptors in quota mode form groups; empty unless the domain has quota_group_by
	Groups  []QuotaGroup // of them, in the order of the request

	Reservation string // the id of what the request has reserved; empty if nothing
}

// Rejection returns the index of the status that rejects the request, or −1 if none does. It is the status that headers describe, if that
// one rejects; otherwise the first one that does.
func (v *Verdict) Rejection() int {
	switch {
	case !v.Over:
		return -1
	case v.Header >= 0 && v.Header < len(v.Statuses) && v.Statuses[v.Header].Outcome.Rejects():
		return v.Header
	default:
		return slices.IndexFunc(v.Statuses, func(s Status) bool { return s.Outcome.Rejects() })
	}
}
