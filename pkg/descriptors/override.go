package descriptors

import (
	"errors"
	"fmt"

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

// renumber gives a limit the number, unit and multiplier of o. After an error the limit means nothing.
func (m *Match) renumber(item *RateLimit, o *Override) error {
	item.RequestsPerUnit, item.Unit, item.Multiplier = o.RequestsPerUnit, o.Unit, max(o.Multiplier, 1)
	window := o.Unit.window(item.Multiplier)
	switch {
	case o.Unit.Length() == 0:
		return ErrOverrideUnit
	case window == 0:
		return ErrOverrideWindow
	}
	item.Limit.Rescale(uint64(o.RequestsPerUnit), window)
	item.Limit.Calendar = m.overriddenCalendar(&item.Limit, *o)
	return item.Limit.Validate()
}

// Named returns the index of the matched rule's limit with a name, or of its first one if name is empty; −1 if there is none.
func (m Match) Named(name string) int {
	for i, item := range m.Rule.RateLimits.All() {
		if name == "" || item.Name == name {
			return i
		}
	}
	return -1
}

// WithOverride returns the i-th limit of the matched rule with the number, unit and multiplier of o, as if the file had them: it
// keeps the name and, where the unit stays, the count. Burst, debt, initial and the calendar change as in [Match.Override],
// whose errors it has; another one is that the rule has another limit of the same algorithm and window.
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
