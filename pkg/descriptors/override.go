package descriptors

import (
	"errors"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Why an override is ignored.
var (
	ErrOverrideUnit   = errors.New("override without a unit: want one of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
	ErrOverrideWindow = errors.New("override with a window of more than 2^48 µs")
)

// Override returns the limit that results from applying o to the matched rule, if any. Number, unit and multiplier are
// those of o. The algorithm stays that of the rule, with burst, debt and initial scaled in proportion; so does the
// calendar, if it has the unit. A log has a counter of its own for each window. If there is no rule, or it is unlimited or a list, the result is a fixed window. The
// error says why o has to be ignored: it is one of the above, or that of [engine.Limit.Validate] for a number that the
// algorithm cannot take.
func (m Match) Override(o Override) (RateLimit, error) {
	item := RateLimit{RequestsPerUnit: o.RequestsPerUnit, Unit: o.Unit, Multiplier: max(o.Multiplier, 1)}
	if o.Unit.Length() == 0 {
		return RateLimit{}, ErrOverrideUnit
	}
	window := o.Unit.window(item.Multiplier)
	if window == 0 {
		return RateLimit{}, ErrOverrideWindow
	}
	l := &item.Limit
	var limits engine.Limits
	if m.Rule != nil {
		limits = m.Rule.RateLimits.Limits()
	}
	if len(limits) != 1 || limits[0].Listed {
		*l = engine.Limit{CountRefused: true}
	} else {
		*l = limits[0]
	}
	l.Rescale(uint64(o.RequestsPerUnit), window)
	l.Calendar = m.overriddenCalendar(l, o)
	if err := l.Validate(); err != nil {
		return RateLimit{}, err
	}
	return item, nil
}
