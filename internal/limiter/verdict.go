package limiter

import (
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Status is the answer to one descriptor.
type Status struct {
	Over      bool              // OVER_LIMIT, after shadow mode of the rule
	Refused   bool              // what the limit itself said; a rule in shadow mode refuses and is not over
	Rule      *descriptors.Rule // nil where none matched
	Item      *descriptors.Item // the limit that is reported; nil where none matched, it is replaced, or it is unlimited
	Override  bool              // Item came with the request: nothing of Rule but its path is to be reported
	Unlimited bool
	Quota     bool // in quota mode, by its rule or by Config.Quota: one of several buckets of which one is enough
	Remaining uint32
	Decision  engine.Decision
}

// Replaced reports whether a rule matched and was dropped because another one of the request replaces it.
func (s *Status) Replaced() bool { return s.Rule != nil && s.Item == nil && !s.Unlimited }

// RuleName is what operators call the limit that is reported: its name, or the path of its rule where it has none. It is
// empty where no rule matched, and never holds anything of the request.
func (s *Status) RuleName() string {
	switch {
	case s.Item != nil && s.Item.Name != "":
		return s.Item.Name
	case s.Rule != nil:
		return s.Rule.Path
	default:
		return ""
	}
}

// UntilReset is what duration_until_reset says: until the counter is whole again, or until the same cost would pass where
// it was refused. It is in whole seconds, rounded up, and at least one second where it was refused.
func (s *Status) UntilReset() time.Duration {
	d := s.Decision.ResetAfter
	if s.Refused {
		d = max(s.Decision.RetryAfter, 1)
	}
	rest := d % time.Second
	if rest == 0 {
		return d
	}
	if d -= rest; d <= math.MaxInt64-time.Second {
		d += time.Second
	}
	return d
}

// Verdict is the answer to a Request. It may be used again; Decide overwrites it.
type Verdict struct {
	Over     bool     // OVER_LIMIT for the whole request
	Statuses []Status // one for each descriptor, in their order
	Header   int      // index of the status that response headers speak of; −1 for none

	scratch scratch
}

// Refusal is the index of the status that tells why the request is refused: the one that headers speak of, or where that
// one is not over, because others in quota mode are, the first of those. It is −1 where the request passes.
func (v *Verdict) Refusal() int {
	switch {
	case !v.Over:
		return -1
	case v.Header >= 0 && v.Header < len(v.Statuses) && v.Statuses[v.Header].Over:
		return v.Header
	default:
		return slices.IndexFunc(v.Statuses, func(s Status) bool { return s.Over })
	}
}
