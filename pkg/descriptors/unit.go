package descriptors

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Unit is the unit of a window, numbered as in Envoy's API.
type Unit uint8

// The units. A month has 30 days and a year 365, except with a calendar.
const (
	UnitUnknown Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
	Forever // a window that never ends; not in Envoy's API
)

// second is a second in the engine's unit.
const second = engine.Micros(1_000_000)

// String returns the name of the unit in rules and in Envoy's API, in capitals; UNKNOWN if u is not a unit.
func (u Unit) String() string {
	if u > Forever {
		u = UnitUnknown
	}
	return [...]string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK", "FOREVER"}[u]
}

// Length returns the length of one unit, or 0 if u is not a unit. That of Forever is the longest window, which affects no decision.
func (u Unit) Length() engine.Micros {
	switch u {
	case Second:
		return second
	case Minute:
		return 60 * second
	case Hour:
		return 3600 * second
	case Day:
		return 86400 * second
	case Week:
		return 7 * 86400 * second
	case Month:
		return 30 * 86400 * second
	case Year:
		return 365 * 86400 * second
	case Forever:
		return rulefile.MaxWindow
	case UnitUnknown:
	}
	return 0
}

// window returns the length of multiplier units, or 0 if u is not a unit or the length exceeds the engine's maximum.
func (u Unit) window(multiplier uint32) engine.Micros {
	length := u.Length()
	if length == 0 || engine.Micros(multiplier) > rulefile.MaxWindow/length {
		return 0
	}
	return length * engine.Micros(multiplier)
}

// ParseUnit returns the unit called name, ignoring case, or UnitUnknown.
func ParseUnit(name string) Unit {
	for u := Second; u <= Forever; u++ {
		if strings.EqualFold(name, u.String()) {
			return u
		}
	}
	return UnitUnknown
}
