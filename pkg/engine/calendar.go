package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Windows may follow the calendar of a time zone: its days, weeks, months and years, with their actual lengths. They are consecutive,
// without gaps.
//
// A day begins when the zone's clocks first show its date, or a later one. So if clocks skip midnight, the day begins at the change; if
// they repeat the hour around midnight, the repetition belongs to the later day; and a date that a zone skipped has no window, or a short one if windows begin later in the day. Weeks
// begin on Monday, as in ISO 8601, months and years on their first day. A [Begin] moves these, for billing periods.
//
// An endless calendar has one window, which began in 1970 and never ends, for prepaid budgets.

// CalendarUnit is the unit of calendar windows.
type CalendarUnit uint8

// The units of a calendar.
const (
	CalendarDay CalendarUnit = iota
	CalendarWeek
	CalendarMonth
	CalendarYear
	CalendarForever // one endless window
)

// calendarKind distinguishes the calendars of one zone.
type calendarKind struct {
	unit  CalendarUnit
	every uint32 // units
	name  string // in the name of a Slot; does not begin with a digit
}

// calendarCount is the number of kinds.
const calendarCount = 10

// calendarKinds returns all kinds. Slots contain their numbers, counted from 1, so the order must not change. Periods of several months
// are counted from January, so they must divide a year.
func calendarKinds() [calendarCount]calendarKind {
	return [calendarCount]calendarKind{
		{CalendarDay, 1, "day"},
		{CalendarWeek, 1, "week"},
		{CalendarMonth, 1, "month"},
		{CalendarMonth, 2, "month2"},
		{CalendarMonth, 3, "month3"},
		{CalendarMonth, 4, "month4"},
		{CalendarMonth, 6, "month6"},
		{CalendarMonth, 12, "month12"},
		{CalendarYear, 1, "year"},
		{CalendarForever, 1, "forever"},
	}
}

// Zone holds the calendars of a time zone. It is immutable.
type Zone struct {
	location  *time.Location
	id        uint64 // 0 for UTC, else a hash of the name
	spans     []zoneSpan
	calendars [calendarCount]Calendar
}

// zoneSpan is a period with a constant offset from UTC. It ends where the next one begins.
type zoneSpan struct {
	from  int64 // seconds since the Unix epoch
	ahead int64 // offset from UTC in seconds, positive to the east
}

// NewZone returns the calendars of a location. The location's name determines the names of counters: two locations with the same name are
// one zone, and two names of the same place are two. NewZone takes about as long as loading the location.
func NewZone(location *time.Location) *Zone {
	z := &Zone{location: location, id: zoneID(location.String()), spans: spansOf(location)}
	for i, kind := range calendarKinds() {
		z.calendars[i] = Calendar{zone: z, unit: kind.unit, every: kind.every, number: uint64(i) + 1, from: Begin{1, 1, 1, 0}, id: z.id}
	}
	return z
}

// zoneID returns a number for a zone's name: an FNV-1a hash folded to the width of a Slot's window.
func zoneID(name string) uint64 {
	if name == time.UTC.String() {
		return 0
	}
	const offset, prime = 14695981039346656037, 1099511628211
	sum := uint64(offset)
	for i := range len(name) {
		sum = (sum ^ uint64(name[i])) * prime
	}
	return max(1, (sum^sum>>slotPrecision)&(1<<slotPrecision-1))
}

// spansOf returns the spans of a location, from some years before to some years after the times that the engine handles.
func spansOf(location *time.Location) []zoneSpan {
	var spans []zoneSpan
	last := time.UnixMicro(int64(latest)).AddDate(10, 0, 0)
	for t := time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC).In(location); t.Before(last); t = spanEnd(t) {
		_, ahead := t.Zone()
		if n := len(spans); n == 0 || spans[n-1].ahead != int64(ahead) {
			spans = append(spans, zoneSpan{t.Unix(), int64(ahead)})
		}
	}
	return spans
}

// spanEnd returns a time after t up to which the offset from UTC is constant. On the last day of a leap year in the far future,
// [time.Time.ZoneBounds] wrongly returns the beginning of that day as the end.
func spanEnd(t time.Time) time.Time {
	const day = secondsPerDay * time.Second
	_, end := t.ZoneBounds()
	switch {
	case end.IsZero():
		return t.AddDate(1000, 0, 0)
	case end.After(t):
		return end
	}
	_, ahead := t.Zone()
	if _, tomorrow := t.Add(day).Zone(); ahead == tomorrow {
		return t.Add(day)
	}
	return t.Add(time.Minute)
}

// at returns the index of the span that contains a time.
func (z *Zone) at(unix int64) int {
	i, found := slices.BinarySearchFunc(z.spans, unix, func(s zoneSpan, t int64) int { return cmp.Compare(s.from, t) })
	if !found {
		i--
	}
	return max(i, 0)
}

// Calendar returns the calendar with windows of every units, or nil if there is none. For months, every must divide a year (1, 2, 3, 4, 6
// or 12); for other units it must be 1.
func (z *Zone) Calendar(unit CalendarUnit, every uint32) *Calendar {
	for i := range z.calendars {
		if c := &z.calendars[i]; c.unit == unit && c.every == every {
			return c
		}
	}
	return nil
}

// Calendar determines the bounds of windows that follow a calendar. It belongs to a [Zone].
type Calendar struct {
	zone   *Zone
	unit   CalendarUnit
	every  uint32
	number uint64 // number of its kind, from 1
	from   Begin
	id     uint64 // the zone's or, with a Begin of its own, a hash of both
}

// Begin is the time at which windows of a calendar begin. A day that a month lacks is its last one. A local time that clocks skip is the
// first moment after it, and one that they repeat is the first of both. The zero value of every field except Hour means 1.
type Begin struct {
	Month   uint32 // 1 to 12, in years
	Day     uint32 // 1 to 31, in months and years
	Weekday uint32 // 1 for Monday to 7 for Sunday, in weeks
	Hour    uint32 // 0 to 23
}

// From returns c with windows that begin at b, or nil if its unit has no such time.
func (c *Calendar) From(b Begin) *Calendar {
	d := *c
	d.from = Begin{max(b.Month, 1), max(b.Day, 1), max(b.Weekday, 1), b.Hour}
	f, year := &d.from, c.unit == CalendarYear
	if c.Endless() || f.Month > 12 || f.Day > 31 || f.Weekday > 7 || f.Hour > 23 ||
		f.Month > 1 && !year || f.Day > 1 && !year && c.unit != CalendarMonth || f.Weekday > 1 && c.unit != CalendarWeek {
		return nil
	}
	if d.id = c.zone.id; *f != c.zone.calendars[0].from {
		d.id = zoneID(fmt.Sprint(c.zone.location, " ", f.Month, f.Day, f.Weekday, f.Hour))
	}
	return &d
}

// Begin returns the time at which windows begin, and whether it is another one than the beginning of the unit.
func (c *Calendar) Begin() (b Begin, other bool) { return c.from, c.id != c.zone.id }

// String returns b as in rules, such as {day: 15, hour: 9}, without fields that have their defaults.
func (b Begin) String() string {
	var words []string
	add := func(key string, n, usual uint32) {
		if n > usual {
			words = append(words, fmt.Sprintf("%s: %d", key, n))
		}
	}
	add("month", b.Month, 1)
	add("day", b.Day, 1)
	add("weekday", b.Weekday, 1)
	add("hour", b.Hour, 0)
	return "{" + strings.Join(words, ", ") + "}"
}

// Unit returns the unit of the windows.
func (c *Calendar) Unit() CalendarUnit { return c.unit }

// endless is the end of a window that never ends.
const endless Micros = MaxHits

// Endless reports whether c has one window, which never ends. c may be nil.
func (c *Calendar) Endless() bool { return c != nil && c.unit == CalendarForever }

// Every returns the length of a window in units.
func (c *Calendar) Every() uint32 { return c.every }

// Zone returns the zone of c.
func (c *Calendar) Zone() *Zone { return c.zone }

// slot returns the part of a [Slot] that identifies c, or 0 if c is nil.
func (c *Calendar) slot() uint64 {
	if c == nil {
		return 0
	}
	return c.number<<slotPrecision | c.id
}

// Location returns the time zone of c.
func (c *Calendar) Location() *time.Location { return c.zone.location }

// same reports whether c and d are the same calendar. Either may be nil.
func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.number == d.number && c.from == d.from && c.zone.location.String() == d.zone.location.String()
}

// Number of windows in [Edges] before and after the current one.
const (
	edgesBefore = 2 // windows
	edgesAfter  = 2
)

// Edges are the boundaries of five consecutive windows: two before the current one, the current one, and two after it. They suffice to
// find the current window with a clock that is off by up to a window's length. Of an endless window, all but the first are its end.
type Edges [edgesBefore + 1 + edgesAfter + 1]Micros

// Edges returns the boundaries of the windows around now.
func (c *Calendar) Edges(now Micros) (e Edges) {
	if c.Endless() {
		return Edges{0, endless, endless, endless, endless, endless}
	}
	present, begin, end := c.present(inRange(now))
	e[edgesBefore], e[edgesBefore+1] = begin, end
	for i, p := edgesBefore, present; i > 0; i-- {
		e[i-1], p = c.beside(p, -1, e[i])
	}
	_, next := c.beside(present, 1, begin)
	for i, p := edgesBefore+1, next; i+1 < len(e); i++ {
		e[i+1], p = c.beside(p, 1, e[i])
	}
	return e
}

// window returns the window that contains now.
func (c *Calendar) window(now Micros) (start, end Micros) {
	if c.Endless() {
		return 0, endless
	}
	_, start, end = c.present(now)
	return start, end
}

// present returns the number and the bounds of the period that contains now, which is the last one to have begun.
func (c *Calendar) present(now Micros) (p int64, begin, end Micros) {
	p = c.period(now)
	begin, end = c.begin(p), c.begin(p+1)
	for end <= now { // clocks had already shown the next period's first day, and then went back
		p++
		begin, end = end, c.begin(p+1)
	}
	return p, begin, end
}

// beside moves from p, which begins at begin, in steps of step periods to the first one with another beginning. It returns that beginning
// and the period's number. A period whose days were all skipped begins together with its successor.
func (c *Calendar) beside(p, step int64, begin Micros) (Micros, int64) {
	for {
		p += step
		if other := c.begin(p); other != begin {
			return other, p
		}
	}
}

// secondsPerDay is the length of a UTC day.
const secondsPerDay = 86_400

// period returns the number of the period that contains the local time at now. Days and weeks are counted from 1970, others from the year
// 0.
func (c *Calendar) period(now Micros) int64 {
	z, unix := c.zone, int64(now/1e6)
	local := time.Unix(unix+z.spans[z.at(unix)].ahead-int64(c.from.Hour)*3600, 0).UTC()
	year, month, day := local.Date()
	today := dayNumber(year, month, day)
	switch c.unit {
	case CalendarDay:
		return today
	case CalendarWeek: // 1970 began on a Thursday; a week more, because division rounds to 0
		return (today+11-int64(c.from.Weekday))/7 - 1
	case CalendarMonth:
		p := int64(year)*12 + int64(month) - 1
		if today < c.dayOf(year, month) {
			p--
		}
		return p / int64(c.every)
	case CalendarYear, CalendarForever:
	}
	if today < c.dayOf(year, time.Month(c.from.Month)) {
		year--
	}
	return int64(year)
}

// begin returns the beginning of a period.
func (c *Calendar) begin(period int64) Micros {
	var day int64
	switch c.unit {
	case CalendarDay:
		day = period
	case CalendarWeek:
		day = period*7 - 4 + int64(c.from.Weekday)
	case CalendarMonth:
		day = c.dayOf(0, time.Month(period*int64(c.every)+1))
	case CalendarYear:
		day = c.dayOf(int(period), time.Month(c.from.Month))
	case CalendarForever:
	}
	return c.zone.reach(day*secondsPerDay + int64(c.from.Hour)*3600)
}

// dayOf returns the number of the day on which a period begins in a month.
func (c *Calendar) dayOf(year int, month time.Month) int64 {
	return min(dayNumber(year, month, int(c.from.Day)), dayNumber(year, month+1, 0))
}

// dayNumber returns the number of days from 1970-01-01 to a date.
func dayNumber(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

// reach returns the time at which the zone's clocks first show a local time, in seconds as if it were UTC, or a later one. No zone is two
// days ahead of UTC.
func (z *Zone) reach(local int64) Micros {
	from := local - 2*secondsPerDay
	for i := z.at(from); ; i++ {
		first := max(from, z.spans[i].from, local-z.spans[i].ahead)
		if i+1 == len(z.spans) || first < z.spans[i+1].from {
			return Micros(first) * 1e6
		}
	}
}
