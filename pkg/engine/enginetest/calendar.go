package enginetest

import (
	"fmt"
	"time"
	_ "time/tzdata" // makes zones the same on every machine

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Zones returns the names of unusual time zones: clocks change at midnight, by half an hour, or a minute after midnight; a date was
// skipped; offsets are multiples of a quarter of an hour, or 14 hours.
func Zones() []string {
	return []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "America/Havana", "America/Santiago",
		"America/St_Johns", "Asia/Beirut", "Asia/Kathmandu", "Asia/Tehran", "Australia/Lord_Howe", "Pacific/Apia",
		"Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Pago_Pago",
	}
}

// Calendar returns the calendar of a zone. It panics if there is none.
func Calendar(zone string, unit engine.CalendarUnit, every uint32) *engine.Calendar {
	location, err := time.LoadLocation(zone)
	if err != nil {
		panic(fmt.Sprintf("enginetest: %v", err)) //nolint:forbidigo // a bug in the calling test
	}
	c := engine.NewZone(location).Calendar(unit, every)
	if c == nil {
		panic(fmt.Sprintf("enginetest: no calendar of %d units %d", every, unit)) //nolint:forbidigo // a bug in the calling test
	}
	return c
}

// calendar draws a calendar. Each calendar is a new one, even for the same zone, as after a reload of the rules.
func calendar() *rapid.Generator[*engine.Calendar] {
	return rapid.Custom(func(t *rapid.T) *engine.Calendar {
		unit := rapid.SampledFrom([]engine.CalendarUnit{
			engine.CalendarDay, engine.CalendarDay, engine.CalendarWeek, engine.CalendarMonth, engine.CalendarMonth, engine.CalendarYear,
		}).Draw(t, "unit")
		every := uint32(1)
		if unit == engine.CalendarMonth {
			every = rapid.SampledFrom([]uint32{1, 1, 2, 3, 4, 6, 12}).Draw(t, "every")
		}
		c := Calendar(rapid.SampledFrom(Zones()).Draw(t, "zone"), unit, every)
		if rapid.IntRange(0, 3).Draw(t, "begins") == 0 {
			c = From().Draw(t, "from")(c)
		}
		return c
	})
}

// From draws a Begin, as a function that returns a calendar with it.
func From() *rapid.Generator[func(*engine.Calendar) *engine.Calendar] {
	return rapid.Custom(func(t *rapid.T) func(*engine.Calendar) *engine.Calendar {
		b := engine.Begin{
			Month: rapid.Uint32Range(1, 12).Draw(t, "month"), Day: rapid.OneOf(rapid.Uint32Range(1, 31), rapid.Uint32Range(28, 31)).Draw(t, "day"),
			Weekday: rapid.Uint32Range(1, 7).Draw(t, "weekday"), Hour: rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32Range(0, 23)).Draw(t, "hour"),
		}
		return func(c *engine.Calendar) *engine.Calendar {
			own := engine.Begin{Hour: b.Hour}
			switch c.Unit() {
			case engine.CalendarDay:
			case engine.CalendarWeek:
				own.Weekday = b.Weekday
			case engine.CalendarMonth:
				own.Day = b.Day
			case engine.CalendarYear:
				own.Month, own.Day = b.Month, b.Day
			case engine.CalendarForever:
			}
			return c.From(own)
		}
	})
}

// nominal returns the approximate length of a window of c.
func nominal(c *engine.Calendar) engine.Micros {
	lengths := map[engine.CalendarUnit]engine.Micros{
		engine.CalendarDay: day, engine.CalendarWeek: 7 * day, engine.CalendarMonth: 30 * day, engine.CalendarYear: year,
	}
	return lengths[c.Unit()] * engine.Micros(c.Every())
}

// windows caches the windows found so far, because the search is slow.
type windows map[*engine.Calendar][][2]engine.Micros

// at returns the window of c that contains now.
func (w windows) at(c *engine.Calendar, now engine.Micros) (start, end engine.Micros) {
	for _, known := range w[c] {
		if known[0] <= now && now < known[1] {
			return known[0], known[1]
		}
	}
	start, end = CalendarWindow(c, now)
	w[c] = append(w[c], [2]engine.Micros{start, end})
	return start, end
}

// CalendarWindow is the twin of [engine.Calendar.Edges]: it returns the window of c that contains now. It reads the zone's clocks. A
// window ends when they first show a date of a later window.
func CalendarWindow(c *engine.Calendar, now engine.Micros) (start, end engine.Micros) {
	present := reached(c, now)
	longest := 2*nominal(c) + 3*day
	start = now - longest + search(longest, func(after engine.Micros) bool { return reached(c, now-longest+after) >= present })
	end = now + search(longest, func(after engine.Micros) bool { return reached(c, now+after) > present })
	return start, end
}

// reached returns the highest label that the clocks have shown in the last 3 hours. Clocks never go back further, and change only at
// whole or half minutes.
func reached(c *engine.Calendar, now engine.Micros) int {
	const back, step = 3 * time.Hour, 30 * time.Second
	t := time.UnixMicro(int64(now)).In(c.Location())
	highest := label(c, t)
	_, ahead := t.Zone()
	if _, before := t.Add(-back).Zone(); before == ahead { // the clocks have not changed
		return highest
	}
	for earlier := t.Truncate(step); t.Sub(earlier) <= back; earlier = earlier.Add(-step) {
		highest = max(highest, label(c, earlier.Add(-1)))
	}
	return highest
}

// label returns a number for the period that contains t, which increases from period to period: the period's first date.
func label(c *engine.Calendar, t time.Time) int {
	year, month, day := t.Date()
	began := beginning(c, year, month, day)
	if began.After(time.Date(year, month, day, t.Hour(), t.Minute(), t.Second(), 0, time.UTC)) {
		switch c.Unit() {
		case engine.CalendarDay, engine.CalendarWeek:
			day--
		case engine.CalendarMonth:
			month, day = began.Month(), 0
		case engine.CalendarYear:
			year--
		case engine.CalendarForever:
		}
		year, month, day = time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Date()
		began = beginning(c, year, month, day)
	}
	return (began.Year()*100+int(began.Month()))*100 + began.Day()
}

// beginning returns the beginning of the day, week, months or year that contain a date.
func beginning(c *engine.Calendar, year int, month time.Month, day int) time.Time {
	from, _ := c.Begin()
	switch c.Unit() {
	case engine.CalendarDay:
		return time.Date(year, month, day, int(from.Hour), 0, 0, 0, time.UTC)
	case engine.CalendarWeek:
		weekday := (int(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday())+6)%7 + 1
		return time.Date(year, month, day-(weekday-int(from.Weekday)+7)%7, int(from.Hour), 0, 0, 0, time.UTC)
	case engine.CalendarMonth:
		month -= (month - 1) % time.Month(c.Every())
	case engine.CalendarYear:
		month = time.Month(from.Month)
	case engine.CalendarForever:
	}
	began := time.Date(year, month, int(from.Day), int(from.Hour), 0, 0, 0, time.UTC)
	if began.Month() != month {
		began = time.Date(year, month+1, 0, int(from.Hour), 0, 0, 0, time.UTC)
	}
	return began
}
