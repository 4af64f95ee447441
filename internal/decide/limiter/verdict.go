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
	Over      bool                    // Envoy's code is OVER_LIMIT, also for late charges and in global shadow mode
	Rule      *descriptors.Rule       // nil if none matched
	RateLimit *descriptors.RateLimit  // the reported limit; nil if none matched, or it is replaced or unlimited
	Limits    *descriptors.RateLimits // all limits in force, of which RateLimit is the strictest; nil if RateLimit is the only one
	Override  bool                    // RateLimit is an override: of Rule, only the path may be reported
	Quota     bool                    // in quota mode, by Rule or Config.Quota: one of several buckets, one of which must admit
	Group     int                     // in quota mode with groups: the index in Verdict.Groups, or AnyGroup
	Remaining uint64
	Decision  engine.Decision

	Control *override.Control // the control that decided, or that set the number of RateLimit; nil if the rules decided
}

// Exceeded reports whether a limit is exceeded, even if that does not reject the request.
func (s *Status) Exceeded() bool {
	return s.Outcome.Rejects() || s.Shadowed() || s.Outcome == ChargedLate && s.Decision.Admitted == 0
}

// Shadowed reports whether a limit is exceeded but does not reject, because of shadow mode.
func (s *Status) Shadowed() bool { return s.Outcome == Shadowed }

// Unlimited reports whether the descriptor is unlimited, because of its rule or a control.
func (s *Status) Unlimited() bool { return s.Outcome == Unlimited || s.Outcome == Allowed }

// Hidden reports whether callers must not see the numbers of s: its rule has headers: off.
func (s *Status) Hidden() bool { return s.Rule != nil && s.Rule.HeadersOff }

// RuleName returns the name of the control that decided, as kind:id. Otherwise it returns the name of the reported limit or, if that has
// none, the path of its rule. It is empty if no rule matched, and never contains anything from the request.
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

// Never reports whether a limit is exceeded that can never admit the same cost.
func (s *Status) Never() bool { return s.Decision.RetryAfter == engine.Never }

// Endless reports whether the reported limit never resets.
func (s *Status) Endless() bool { return s.Decision.ResetAfter == engine.Never }

// ResetSeconds returns duration_until_reset in whole seconds, rounded up. It is the time until the counter is full again. If a limit is
// exceeded, it is the time until the same cost would be admitted, at least one second. If the cost can never be admitted, it is the rest
// of the fixed window, or the length of the window for other algorithms and for windows that never end, because proxies tell clients to
// retry after that time.
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
	if d == engine.Never { // 0 would tell clients to retry at once
		d = time.Duration(s.RateLimit.Limit.Window) * time.Microsecond
	}
	n := int64(d / time.Second)
	if d%time.Second > 0 {
		n++
	}
	return n
}

// Verdict is the answer to a Request.
type Verdict struct {
	Over     bool     // the answer to the request is OVER_LIMIT
	Class    Class    // class of the decision
	Statuses []Status // one for each descriptor, in order
	Header   int      // index of the status that response headers describe, never a hidden one; −1 if none

	GroupBy []string     // the keys whose values group descriptors in quota mode; empty without quota_group_by
	Groups  []QuotaGroup // the groups, in the order of the request

	Reservation string // ID of the request's reservations; empty if none
}

// Rejection returns the index of the status that rejects the request, or −1. It prefers the status that headers describe, if it rejects;
// otherwise it is the first one that does.
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
