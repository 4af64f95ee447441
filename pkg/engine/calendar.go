package engine

import (
	"cmp"
	"slices"
	"time"
)

// Windows may follow the calendar of a time zone: its days, weeks, months and years, as long as they are there. They
// lie without gaps one behind the other.
//
// A day begins when the zone's clocks first show its date, or a later one. So a day that begins with a change of the clocks
// begins where the clocks stand afterwards, an hour that is repeated around midnight belongs to the later day, and a
// date that a zone skipped has no window. Weeks begin with Mondays, as in ISO 8601, months and years with their first days.

// CalendarUnit is the unit of windows that follow the calendar.
type CalendarUnit uint8

// The units of calendars.
const (
	CalendarDay CalendarUnit = iota
	CalendarWeek
	CalendarMonth
	CalendarYear
)

// calendarKind is what sets the calendars of a zone apart.
type calendarKind struct {
	unit  CalendarUnit
	every uint32 // units
	name  string // in a Slot's; no digit stands at its front
}

// calendarKinds are all there are. Slots hold their numbers, from 1, so an order once used stays. Several months are
// counted from January, which parts of a year can be.
const calendarCount = 9

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

// Zone has the calendars of a time zone. It is immutable.
type Zone struct {
	location  *time.Location
	id        uint64 // 0 for UTC, else made of the name
	spans     []zoneSpan
	calendars [calendarCount]Calendar
}

// zoneSpan is a time in which clocks stand still against UTC. It ends where the next one begins.
type zoneSpan struct {
	from  int64 // seconds since the Unix epoch
	ahead int64 // seconds that clocks are ahead of UTC
}

// NewZone returns the calendars of a location. Its name is what names counters: two locations of one name are one zone,
// and two names of one place are two. It takes about as long as reading the location did.
func NewZone(location *time.Location) *Zone {
	z := &Zone{location: location, id: zoneID(location.String()), spans: spansOf(location)}
	for i, kind := range calendarKinds() {
		z.calendars[i] = Calendar{zone: z, unit: kind.unit, every: kind.every, number: uint64(i) + 1}
	}
	return z
}

// zoneID is a number for a name, an FNV-1a hash, that fits where a Slot has its window.
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

// spansOf lists the spans of a location in the time that the engine tells apart, and some years around it.
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

// spanEnd is a time behind t up to which clocks stand still. [time.Time.ZoneBounds] does not know it on the last day of a leap
// year that is far from now: there it says that the span ends when the day begins.
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

// at is the index of the span that a time is in.
func (z *Zone) at(unix int64) int {
	i, found := slices.BinarySearchFunc(z.spans, unix, func(s zoneSpan, t int64) int { return cmp.Compare(s.from, t) })
	if !found {
		i--
	}
	return max(i, 0)
}

// Calendar is the calendar whose windows are so many units long, or nil where there is none: several months have to be a
// part of a year (2, 3, 4, 6 or 12), and there is only one of the other units.
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
	number uint64 // of its kind, from 1
}

// Unit is the unit of the windows.
func (c *Calendar) Unit() CalendarUnit { return c.unit }

// Every is how many units a window has.
func (c *Calendar) Every() uint32 { return c.every }

// Zone is the zone whose calendar it is.
func (c *Calendar) Zone() *Zone { return c.zone }

// Location is the time zone.
func (c *Calendar) Location() *time.Location { return c.zone.location }

// same reports whether c and d are one calendar; nil is none.
func (c *Calendar) same(d *Calendar) bool {
	return c == d || c != nil && d != nil && c.number == d.number && c.zone.location.String() == d.zone.location.String()
}

// Where the present window stands among [Edges].
const (
	edgesBefore = 2 // windows
	edgesAfter  = 2
)

// Edges are where five windows begin that follow each other, and where the last of them ends: the present window, and
// two before and behind it. Who is told them can tell the present window by a clock that goes wrong by a window's length.
type Edges [edgesBefore + 1 + edgesAfter + 1]Micros

// Edges are those around now.
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

// window is the window that now is in.
func (c *Calendar) window(now Micros) (start, end Micros) {
	_, start, end = c.present(now)
	return start, end
}

// present is the number of the period that now is in, the last one to have begun, and where it begins and ends.
func (c *Calendar) present(now Micros) (p int64, begin, end Micros) {
	p = c.period(now)
	begin, end = c.begin(p), c.begin(p+1)
	for end <= now { // the first day of the next one came, and went again
		p++
		begin, end = end, c.begin(p+1)
	}
	return p, begin, end
}

// beside is where the first period before or after p begins that does not begin with it, at begin, and its number.
func (c *Calendar) beside(p, step int64, begin Micros) (Micros, int64) {
	for {
		p += step
		if other := c.begin(p); other != begin {
			return other, p
		}
	}
}

const secondsPerDay = 86_400

// period is the number of the period that the date of a time is in. Days and weeks are counted from 1970, the others
// from the year 0.
func (c *Calendar) period(now Micros) int64 {
	z, unix := c.zone, int64(now/1e6)
	year, month, day := time.Unix(unix+z.spans[z.at(unix)].ahead, 0).UTC().Date()
	switch c.unit {
	case CalendarDay:
		return dayNumber(year, month, day)
	case CalendarWeek: // 1970 began with a Thursday
		return (dayNumber(year, month, day) + 3) / 7
	case CalendarMonth:
		return (int64(year)*12 + int64(month) - 1) / int64(c.every)
	case CalendarYear:
	}
	return int64(year)
}

// begin is when a period begins.
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

// dayNumber is how many days a date is after that of the Unix epoch.
func dayNumber(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

// reach is when the zone's clocks first show a date, or a later one. No zone is two days ahead of UTC.
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
