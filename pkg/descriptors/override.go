package descriptors

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Reasons to ignore an override.
var (
	ErrOverrideUnit   = errors.New("override without a unit: want one of SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR")
	ErrOverrideWindow = errors.New("override with a window of more than 2^48 µs")

	ErrOverrideForever = errors.New("override with the unit FOREVER of a limit with another unit")
)

// Override applies o to the matched rule, if any, and returns the resulting limit. Number, unit and multiplier are those of o. The
// algorithm is that of the rule, with burst, debt and initial scaled in proportion. The calendar is kept if it has the unit. A log has a
// separate counter for each window. Without a rule, or if it is unlimited or a list, the result is a fixed window. The error is the
// reason to ignore o: one of the above, or that of [engine.Limit.Validate] for a number that the algorithm does not accept.
func (m Match) Override(o Override) (RateLimit, error) {
	var limits engine.Limits
	if m.Rule != nil {
		limits = m.Rule.RateLimits.Limits()
	}
	item := RateLimit{Limit: engine.Limit{CountRefused: true}}
	if len(limits) == 1 && !limits[0].Listed {
		item.Limit = limits[0]
	}
	if err := m.renumber(&item, &o); err != nil {
		return RateLimit{}, err
	}
	return item, nil
}

// renumber sets the number, unit and multiplier of a limit to those of o. After an error the limit is invalid.
func (m *Match) renumber(item *RateLimit, o *Override) error {
	item.RequestsPerUnit, item.Unit, item.Multiplier = saturated(o.Number()), o.Unit, max(o.Multiplier, 1)
	window := o.Unit.window(item.Multiplier)
	switch {
	case o.Unit == Forever && !item.Limit.Calendar.Endless():
		return ErrOverrideForever
	case o.Unit.Length() == 0:
		return ErrOverrideUnit
	case window == 0:
		return ErrOverrideWindow
	}
	item.Limit.Rescale(o.Number(), window)
	item.Limit.Calendar = m.overriddenCalendar(&item.Limit, *o)
	return item.Limit.Validate()
}

// Named returns the index of the matched rule's limit called name, or of its first one if name is empty; −1 if there is none.
func (m Match) Named(name string) int {
	for i, item := range m.Rule.RateLimits.All() {
		if name == "" || item.Name == name {
			return i
		}
	}
	return -1
}

// WithOverride returns the i-th limit of the matched rule with the number, unit and multiplier of o, as if the file had them: it keeps
// the name and, if the unit is the same, the count. Burst, debt, initial and calendar change as in [Match.Override]. The errors are those
// of [Match.Override], and one for another limit of the rule with the same algorithm and window.
func (m Match) WithOverride(i int, o Override) (RateLimit, error) {
	item := *m.Rule.RateLimits.At(i)
	if err := m.renumber(&item, &o); err != nil {
		return RateLimit{}, err
	}
	for j, other := range m.Rule.RateLimits.Limits() {
		if j != i && other.SharesState(&item.Limit) {
			return RateLimit{}, fmt.Errorf("the rule has another limit of %s and this window", item.Limit.Algorithm)
		}
	}
	return item, nil
}
