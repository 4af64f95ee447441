package enginetest

import (
	"fmt"
	"time"
	_ "time/tzdata" // so that every machine has the same zones

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Zones are the names of time zones that are each odd in its own way: clocks that change at midnight, or by half an hour,
// or a minute after midnight; a date that was skipped; offsets of quarters of an hour and of 14 hours.
func Zones() []string {
	return []string{
		"UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "Africa/Cairo", "America/Havana", "America/Santiago",
		"America/St_Johns", "Asia/Beirut", "Asia/Kathmandu", "Asia/Tehran", "Australia/Lord_Howe", "Pacific/Apia",
		"Pacific/Chatham", "Pacific/Kiritimati", "Pacific/Pago_Pago",
	}
}

// Calendar is the calendar of a zone. It panics where there is none.
func Calendar(zone string, unit engine.CalendarUnit, every uint32) *engine.Calendar {
	location, err := time.LoadLocation(zone)
	if err != nil {
		panic(fmt.Sprintf("enginetest: %v", err)) //nolint:forbidigo // the test that asks has a bug
	}
	c := engine.NewZone(location).Calendar(unit, every)
	if c == nil {
		panic(fmt.Sprintf("enginetest: no calendar of %d units %d", every, unit)) //nolint:forbidigo // the test that asks has a bug
	}
	return c
}

// calendar draws a calendar. Those of a zone are made anew each time, as after a reload of the rules.
func calendar() *rapid.Generator[*engine.Calendar] {
	return rapid.Custom(func(t *rapid.T) *engine.Calendar {
		unit := rapid.SampledFrom([]engine.CalendarUnit{
			engine.CalendarDay, engine.CalendarDay, engine.CalendarWeek, engine.CalendarMonth, engine.CalendarMonth, engine.CalendarYear,
		}).Draw(t, "unit")
		every := uint32(1)
		if unit == engine.CalendarMonth {
			every = rapid.SampledFrom([]uint32{1, 1, 2, 3, 4, 6, 12}).Draw(t, "every")
		}
		return Calendar(rapid.SampledFrom(Zones()).Draw(t, "zone"), unit, every)
	})
}

// nominal is about how long a window of c is.
func nominal(c *engine.Calendar) engine.Micros {
	lengths := map[engine.CalendarUnit]engine.Micros{
		engine.CalendarDay: day, engine.CalendarWeek: 7 * day, engine.CalendarMonth: 30 * day, engine.CalendarYear: year,
	}
	return lengths[c.Unit()] * engine.Micros(c.Every())
}

// windows remembers those that were found, since finding one takes long.
type windows map[*engine.Calendar][][2]engine.Micros

// at is the window of c that now is in.
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

// CalendarWindow is the twin of [engine.Calendar.Edges]: the window of c that now is in. It reads the date off the zone's
// clocks, and knows that a window ends when they show the date of another one that they have not shown before.
func CalendarWindow(c *engine.Calendar, now engine.Micros) (start, end engine.Micros) {
	present := reached(c, now)
	longest := 2*nominal(c) + 3*day
	start = now - longest + search(longest, func(after engine.Micros) bool { return reached(c, now-longest+after) >= present })
	end = now + search(longest, func(after engine.Micros) bool { return reached(c, now+after) > present })
	return start, end
}

// reached is the highest of the labels that the clocks have shown in the last hours. They never go back by more, nor
// change but at half minutes.
func reached(c *engine.Calendar, now engine.Micros) int {
	const back, step = 3 * time.Hour, 30 * time.Second
	t := time.UnixMicro(int64(now)).In(c.Location())
	highest := label(c, t)
	for earlier := t.Truncate(step); t.Sub(earlier) <= back; earlier = earlier.Add(-step) {
		highest = max(highest, label(c, earlier.Add(-1)))
	}
	return highest
}

// label is a number for the period that t is in, higher for later ones.
func label(c *engine.Calendar, t time.Time) int {
	year, month, day := t.Date()
	switch c.Unit() {
	case engine.CalendarDay:
		return (year*100+int(month))*100 + day
	case engine.CalendarWeek:
		year, week := t.ISOWeek()
		return year*100 + week
	case engine.CalendarMonth:
		return year*100 + (int(month)-1)/int(c.Every())
	case engine.CalendarYear:
	}
	return year
}
