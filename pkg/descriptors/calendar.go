package descriptors

import (
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// zones caches the time zones that rules name.
type zones map[string]*engine.Zone

// zone returns the zone with a name in the IANA database, or nil. It does not accept Local, whose meaning depends on the machine.
func (z zones) zone(name string) *engine.Zone {
	if known, ok := z[name]; ok {
		return known
	}
	z[name] = nil
	if location, err := time.LoadLocation(name); err == nil && name != "" && name != "Local" {
		z[name] = engine.NewZone(location)
	}
	return z[name]
}

// calendarUnit returns the calendar unit for u; ok is false if there is none.
func (u Unit) calendarUnit() (engine.CalendarUnit, bool) {
	switch u {
	case Day:
		return engine.CalendarDay, true
	case Week:
		return engine.CalendarWeek, true
	case Month:
		return engine.CalendarMonth, true
	case Year:
		return engine.CalendarYear, true
	case UnitUnknown, Second, Minute, Hour, Forever:
	}
	return 0, false
}

// calendarOf returns the calendar of a zone with windows of multiplier units, or nil if there is none.
func (u Unit) calendarOf(z *engine.Zone, multiplier uint32) *engine.Calendar {
	unit, ok := u.calendarUnit()
	if !ok || z == nil {
		return nil
	}
	return z.Calendar(unit, multiplier)
}

// forever sets the calendar of an item with the unit forever, and validates the keys that the unit restricts.
func (c *compiler) forever(raw *rulefile.Limit, item *RateLimit, path string) {
	l := &item.Limit
	switch {
	case item.Unit != Forever:
	case l.Algorithm != engine.FixedWindow:
		c.Fail(raw.Get(rulefile.KeyUnit).At, path, "unit: forever does not apply to %s: it belongs to fixed_window", l.Algorithm)
	case l.Align != engine.AlignClock:
		c.Fail(raw.Get(engine.ParamAlign.String()).At, path, "align: first with unit: forever, whose window began long ago: remove align")
	default:
		l.Calendar = c.zones.zone(time.UTC.String()).Calendar(engine.CalendarForever, 1)
	}
}

// bounded checks that only an operator can add a counter that stays forever: each entry on the path of r has a fixed value, or r is
// another plan than default, and the only other entry names the tenant.
func (c *compiler) bounded(r *Rule, n *Node) {
	if !r.Forever() {
		return
	}
	for i, above := range n.path() {
		tenant := i == r.planAt && r.Plan != "" && r.Plan != rulefile.DefaultPlan
		if (above.Value == "" || above.IsWildcard()) && !tenant {
			c.Fail(above.at, r.Path, "unit: forever below the entry '%s', any value of which would add a counter that stays: "+
				"give it a value, or use plans with plan_of: %[1]s, with the limit in another plan than default", plain.Shorten(above.Key))
			return
		}
	}
}

// Forever reports whether a limit of r has the unit forever.
func (r *Rule) Forever() bool {
	return slices.ContainsFunc(r.RateLimits.Limits(), func(l engine.Limit) bool { return l.Calendar.Endless() })
}

// calendar sets the calendar of an item according to the file or, without the key calendar, to USE_CALENDAR_MONTH_RATE_LIMIT.
func (c *compiler) calendar(raw *rulefile.Limit, item *RateLimit, path string) {
	l := &item.Limit
	if !engine.ParamCalendar.TakenBy(l.Algorithm) {
		return // has been reported if the file requests a calendar
	}
	asked, zone := raw.Get(engine.ParamCalendar.String()), raw.Get(engine.ParamTimezone.String())
	if zone.At.Present() && !asked.On() && !asked.Broken {
		c.Fail(zone.At, path, "timezone has no effect without calendar: true")
	}
	switch {
	case asked.On():
		c.askedCalendar(raw, item, path)
	case !asked.At.Present() && l.Align == engine.AlignClock && item.Unit == Month:
		l.Calendar = item.Unit.calendarOf(c.domain.months, item.Multiplier)
	}
}

// askedCalendar sets the calendar that the file requests.
func (c *compiler) askedCalendar(raw *rulefile.Limit, item *RateLimit, path string) {
	asked, named := raw.Get(engine.ParamCalendar.String()), raw.Get(engine.ParamTimezone.String())
	name := "UTC"
	if named.At.Present() {
		name = named.Value
	}
	unit := strings.ToLower(item.Unit.String())
	_, known := item.Unit.calendarUnit()
	zone := c.zones.zone(name)
	calendar := item.Unit.calendarOf(zone, item.Multiplier)
	switch {
	case item.Limit.Align != engine.AlignClock:
		c.Fail(asked.At, path, "calendar: true with align: first: windows begin by the calendar or with a hit; remove one of them")
	case !known:
		c.Fail(asked.At, path, "calendar: true with the unit %s: want day, week, month or year", unit)
	case zone == nil:
		if !named.Broken {
			c.Fail(named.At, path, "unknown timezone '%s': want a name in the IANA database, such as Europe/Berlin or UTC", plain.Shorten(name))
		}
	case calendar == nil && item.Unit == Month:
		c.Fail(raw.Get(rulefile.KeyUnitMultiplier).At, path,
			"unit_multiplier %d with calendar: true: want 1, 2, 3, 4, 6 or 12 months, which make up a year", item.Multiplier)
	case calendar == nil:
		c.Fail(raw.Get(rulefile.KeyUnitMultiplier).At, path,
			"unit_multiplier %d with calendar: true: want 1 for the unit %s", item.Multiplier, unit)
	default:
		item.Limit.Calendar = c.begins(calendar, asked.Fields, unit, path)
	}
}

// begins returns a calendar whose windows begin at the time given by the fields of a file.
func (c *compiler) begins(calendar *engine.Calendar, fields rulefile.Fields, unit, path string) *engine.Calendar {
	units := map[string]string{rulefile.KeyMonth: "year", rulefile.KeyDay: "month or year", rulefile.KeyWeekday: "week", rulefile.KeyHour: unit}
	for _, f := range fields {
		switch {
		case f.Broken:
		case !strings.Contains(units[f.Name], unit):
			c.Fail(f.At, path, "%s of a calendar with the unit %s: it belongs to the unit %s", f.Name, unit, units[f.Name])
		default:
			c.number(f, " of a calendar", path)
		}
	}
	number := func(key string) uint32 { return uint32(fields.Get(key).N) }
	from := engine.Begin{
		Month: number(rulefile.KeyMonth), Day: number(rulefile.KeyDay), Weekday: number(rulefile.KeyWeekday), Hour: number(rulefile.KeyHour),
	}
	if from == (engine.Begin{}) {
		return calendar
	}
	return calendar.From(from)
}

// overriddenCalendar returns the calendar of an override of l. For a rule with the key calendar, it is the same for the same unit, and for
// others that of the rule's zone, if there is one; otherwise it is determined by USE_CALENDAR_MONTH_RATE_LIMIT.
func (m Match) overriddenCalendar(l *engine.Limit, o Override) *engine.Calendar {
	if o.Unit == Forever { // as that of l
		return l.Calendar
	}
	zone := m.months
	if o.Unit != Month || l.Algorithm != engine.FixedWindow || l.Align != engine.AlignClock {
		zone = nil
	}
	if m.Rule != nil && m.Rule.hasCalendarKey {
		zone = nil
		if l.Calendar != nil && !l.Calendar.Endless() {
			zone = l.Calendar.Zone()
		}
	}
	calendar := o.Unit.calendarOf(zone, max(o.Multiplier, 1))
	if was := l.Calendar; zone != nil && was != nil && calendar != nil && calendar.Unit() == was.Unit() && calendar.Every() == was.Every() {
		return was
	}
	return calendar
}
