package engine

import (
	"cmp"
	"slices"
	"time"
)

// Windows may follow the calendar of a time zone: its days, weeks, months and years, however long each is there. They
// follow each other without gaps.
//
// A day begins when the zone's clocks first show its date, or a later one. So where clocks skip midnight the day begins
// at the moment they change, where they repeat the hour around midnight the repetition belongs to the later day, and a
// date that a zone skipped has no window. Weeks begin on Monday, as in ISO 8601, months and years on their first day.

// CalendarUnit is the unit of windows that follow a calendar.
type CalendarUnit uint8

// The units of a calendar.
const (
	CalendarDay CalendarUnit = iota
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// calendarKind is what distinguishes the calendars of one zone.
type calendarKind struct {
	unit  CalendarUnit
	every uint32 // units
	name  string // part of a Slot's name; does not begin with a digit
}

// calendarCount is how many kinds there are.
const calendarCount = 9

// calendarKinds lists all kinds. Slots hold their numbers, counted from 1, so the order must never change. Periods of
// several months are counted from January, so they must divide a year.
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
	}
}

// Zone holds the calendars of a time zone. It is immutable.
type Zone struct {
	location  *time.Location
	id        uint64 // 0 for UTC, else a hash of the name
	spans     []zoneSpan
	calendars [calendarCount]Calendar
}

// zoneSpan is a span of time with a constant offset from UTC. It ends where the next one begins.
type zoneSpan struct {
	from  int64 // seconds since the Unix epoch
	ahead int64 // offset from UTC in seconds, positive to the east
}

// NewZone returns the calendars of a location. Counters are named after the location's name: two locations with the
// same name are one zone, and two names of the same place are two. It takes about as long as loading the location did.
func NewZone(location *time.Location) *Zone {
	z := &Zone{location: location, id: zoneID(location.String()), spans: spansOf(location)}
	for i, kind := range calendarKinds() {
		z.calendars[i] = Calendar{zone: z, unit: kind.unit, every: kind.every, number: uint64(i) + 1}
	}
	return z
}

// zoneID returns a number for a zone's name, an FNV-1a hash folded to the width of a Slot's window.
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

// spansOf lists the spans of a location, from some years before to some years after the times that the engine handles.
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

// spanEnd returns a time after t up to which the offset from UTC does not change. [time.Time.ZoneBounds] gets it wrong
// on the last day of a leap year in the far future: there it says that the span ends when that day begins.
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

// Calendar returns the calendar whose windows are every units long, or nil if there is none: for months every must
// divide a year (1, 2, 3, 4, 6 or 12), and for the other units it must be 1.
func (z *Zone) Calendar(unit CalendarUnit, every uint32) *Calendar {
	for i := range z.calendars {
		if c := &z.calendars[i]; c.unit == unit && c.every == every {
			return c
		}
	}
	return nil
}

// Calendar says where windows that follow a calendar begin. It belongs to a [Zone].
type Calendar struct {
	zone   *Zone
	unit   CalendarUnit
	every  uint32
	number uint64 // the number of its kind, from 1
}

// Unit returns the unit of the windows.
func (c *Calendar) Unit() CalendarUnit { return c.unit }

// Every returns how many units long a window is.
func (c *Calendar) Every() uint32 { return c.every }

// Zone returns the zone that c belongs to.
func (c *Calendar) Zone() *Zone { return c.zone }

// slot returns the part of a [Slot] that names c, 0 if c is nil.
func (c *Calendar) slot() uint64 {
	if c == nil {
		return 0
	}
	return c.number<<slotPrecision | c.zone.id
}

// Location returns the time zone that c follows.
func (c *Calendar) Location() *time.Location { return c.zone.location }

// same reports whether c and d are the same calendar; either may be nil.
func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.number == d.number && c.zone.location.String() == d.zone.location.String()
}

// How many windows [Edges] has before and after the current one.
const (
	edgesBefore = 2 // windows
	edgesAfter  = 2
)

// Edges are the boundaries of five consecutive windows: the current one, two before and two after it. A caller that has them
// can find the current window even with a clock that is off by up to a window's length.
type Edges [edgesBefore + 1 + edgesAfter + 1]Micros

// Edges returns the boundaries of the windows around now.
func (c *Calendar) Edges(now Micros) (e Edges) {
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
	_, start, end = c.present(now)
	return start, end
}

// present returns the number of the period that contains now, which is the last one to have begun, and where it begins
// and ends.
func (c *Calendar) present(now Micros) (p int64, begin, end Micros) {
	p = c.period(now)
	begin, end = c.begin(p), c.begin(p+1)
	for end <= now { // clocks showed the next period's first day already, and then went back
		p++
		begin, end = end, c.begin(p+1)
	}
	return p, begin, end
}

// beside steps from p, which begins at begin, by step periods at a time to the first one that begins at another time,
// and returns where that one begins and its number. A period whose days were all skipped begins together with its
// successor.
func (c *Calendar) beside(p, step int64, begin Micros) (Micros, int64) {
	for {
		p += step
		if other := c.begin(p); other != begin {
			return other, p
		}
	}
}

const secondsPerDay = 86_400

// period returns the number of the period that contains the date the clocks show at now. Days and weeks are counted
// from 1970, the others from the year 0.
func (c *Calendar) period(now Micros) int64 {
	z, unix := c.zone, int64(now/1e6)
	year, month, day := time.Unix(unix+z.spans[z.at(unix)].ahead, 0).UTC().Date()
	switch c.unit {
	case CalendarDay:
		return dayNumber(year, month, day)
	case CalendarWeek: // 1970 began on a Thursday
		return (dayNumber(year, month, day) + 3) / 7
	case CalendarMonth:
		return (int64(year)*12 + int64(month) - 1) / int64(c.every)
	case CalendarYear:
	}
	return int64(year)
}

// begin returns when a period begins.
func (c *Calendar) begin(period int64) Micros {
	switch c.unit {
	case CalendarDay:
		return c.zone.reach(period)
	case CalendarWeek:
		return c.zone.reach(period*7 - 3)
	case CalendarMonth:
		return c.zone.reach(dayNumber(0, time.Month(period*int64(c.every)+1), 1))
	case CalendarYear:
	}
	return c.zone.reach(dayNumber(int(period), time.January, 1))
}

// dayNumber returns the number of days from 1970-01-01 to a date.
func dayNumber(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

// reach returns when the zone's clocks first show a date, or a later one. No zone is two days ahead of UTC.
func (z *Zone) reach(day int64) Micros {
	midnight := day * secondsPerDay
	from := midnight - 2*secondsPerDay
	for i := z.at(from); ; i++ {
		first := max(from, z.spans[i].from, midnight-z.spans[i].ahead)
		if i+1 == len(z.spans) || first < z.spans[i+1].from {
			return Micros(first) * 1e6
		}
	}
}
