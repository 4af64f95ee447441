package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// calendars returns all calendars of a zone.
func calendars(zone string) []*engine.Calendar {
	all := []*engine.Calendar{
		enginetest.Calendar(zone, engine.CalendarDay, 1),
		enginetest.Calendar(zone, engine.CalendarWeek, 1),
		enginetest.Calendar(zone, engine.CalendarYear, 1),
	}
	for _, months := range []uint32{1, 2, 3, 4, 6, 12} {
		all = append(all, enginetest.Calendar(zone, engine.CalendarMonth, months))
	}
	return append(all,
		all[0].From(engine.Begin{Hour: 2}),
		all[1].From(engine.Begin{Weekday: 7, Hour: 2}),
		all[2].From(engine.Begin{Month: 2, Day: 29, Hour: 23}),
		all[3].From(engine.Begin{Day: 15, Hour: 9}),
		all[3].From(engine.Begin{Day: 31}),
		all[5].From(engine.Begin{Day: 30, Hour: 1}),
	)
}

// checkEdges compares all windows around now with those of the twin.
func checkEdges(c *engine.Calendar, now engine.Micros) error {
	e := c.Edges(now)
	for i := range len(e) - 1 {
		for _, at := range []engine.Micros{e[i], e[i+1] - 1} {
			if start, end := enginetest.CalendarWindow(c, at); start != e[i] || end != e[i+1] {
				return fmt.Errorf("the windows around %s are %s, that of %s is %s to %s",
					text1(c, now), dates(c, e[:]), text1(c, at), text1(c, start), text1(c, end))
			}
		}
	}
	if e[2] > now || e[3] <= now {
		return fmt.Errorf("the windows around %s are %s, of which the third is not its own", text1(c, now), dates(c, e[:]))
	}
	return nil
}

func text1(c *engine.Calendar, t engine.Micros) string {
	return time.UnixMicro(int64(t)).In(c.Location()).Format(time.RFC3339Nano)
}

func dates(c *engine.Calendar, all []engine.Micros) (out []string) {
	for _, t := range all {
		out = append(out, text1(c, t))
	}
	return out
}

// TestCalendarEdges compares the windows of all zones of enginetest with the twin's, which reads the zones' clocks.
func TestCalendarEdges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(enginetest.Zones()).Draw(t, "zone")
		c := rapid.SampledFrom(calendars(zone)).Draw(t, "calendar")
		if rapid.Bool().Draw(t, "begins at any time") {
			c = enginetest.From().Draw(t, "begin")(c)
		}
		const first, last = 4 * 365 * 86_400_000_000, 140 * 365 * 86_400_000_000
		now := rapid.Int64Range(first, last).Draw(t, "now")
		if rapid.Bool().Draw(t, "at a change of the clocks") {
			if _, change := time.UnixMicro(now).In(c.Location()).ZoneBounds(); !change.IsZero() && change.UnixMicro() < last {
				now = change.UnixMicro() + rapid.Int64Range(-2, 2).Draw(t, "µs")
			}
		}
		if err := checkEdges(c, engine.Micros(now)); err != nil {
			t.Fatalf("%s, %d × %d: %v", zone, c.Every(), c.Unit(), err)
		}
	})
}

func FuzzCalendar(f *testing.F) {
	f.Add(uint8(1), uint8(0), int64(1_774_742_400_000_000))
	f.Add(uint8(12), uint8(0), int64(1_325_239_200_000_000))
	f.Add(uint8(7), uint8(4), int64(1_257_042_690_000_000))
	f.Fuzz(func(t *testing.T, zone, kind uint8, now int64) {
		zones := enginetest.Zones()
		all := calendars(zones[int(zone)%len(zones)])
		c := all[int(kind)%len(all)]
		now = max(min(now, 1<<52), 3*365*86_400_000_000)
		if err := checkEdges(c, engine.Micros(now)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCalendarWindowsTile follows each calendar through 90 years. Each window begins at the end of the previous one, and windows in UTC
// have the lengths of the Gregorian calendar.
func TestCalendarWindowsTile(t *testing.T) {
	for _, zone := range enginetest.Zones() {
		for _, c := range calendars(zone) {
			for now := engine.Micros(0); now < 90*year; {
				e := c.Edges(now)
				next := c.Edges(e[5])
				if !slices.Equal(next[:3], e[3:]) || e[2] > now || e[3] <= now || !slices.IsSorted(e[:]) {
					t.Fatalf("%s, %d × %d: %v are followed by %v", zone, c.Every(), c.Unit(), dates(c, e[:]), dates(c, next[:]))
				}
				now = e[5]
			}
		}
	}
	lengths := []int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
	months, now := enginetest.Calendar("UTC", engine.CalendarMonth, 1), engine.Micros(0)
	for i := range 12 * 100 {
		want := lengths[i%12]
		if year := 1970 + i/12; i%12 == 1 && year%4 == 0 && year%100 != 0 || i == 12*30+1 {
			want = 29
		}
		if e := months.Edges(now); e[3]-now != engine.Micros(want)*24*3600*1e6 || e[2] != now {
			t.Fatalf("month %d is %v, want %d days", i, dates(months, e[:]), want)
		}
		now = months.Edges(now)[3]
	}
}

// TestCalendarOfZone tests that a number of months must divide a year, and that other units allow only 1.
func TestCalendarOfZone(t *testing.T) {
	z := engine.NewZone(time.UTC)
	for unit := engine.CalendarDay; unit <= engine.CalendarYear; unit++ {
		for every := range uint32(30) {
			want := every == 1 || unit == engine.CalendarMonth && every > 0 && 12%every == 0
			if got := z.Calendar(unit, every); (got != nil) != want {
				t.Errorf("unit %d, %d of them: %v, want one: %t", unit, every, got, want)
			}
		}
	}
}

// TestCalendarBegins tests that a calendar accepts only a Begin that its unit has, and that the unit's beginning is the default.
func TestCalendarBegins(t *testing.T) {
	units := []string{"day", "week", "month", "year"}
	for _, c := range []struct {
		from engine.Begin
		of   string // units that have such a beginning
	}{
		{engine.Begin{}, "day week month year"},
		{engine.Begin{Month: 1, Day: 1, Weekday: 1}, "day week month year"},
		{engine.Begin{Hour: 23}, "day week month year"},
		{engine.Begin{Hour: 24}, ""},
		{engine.Begin{Weekday: 7}, "week"},
		{engine.Begin{Weekday: 8}, ""},
		{engine.Begin{Day: 31}, "month year"},
		{engine.Begin{Day: 32}, ""},
		{engine.Begin{Month: 12}, "year"},
		{engine.Begin{Month: 13}, ""},
		{engine.Begin{Month: 2, Day: 31, Hour: 9}, "year"},
	} {
		for unit, name := range units {
			usual := enginetest.Calendar("UTC", engine.CalendarUnit(unit), 1)
			got := usual.From(c.from)
			if (got != nil) != strings.Contains(c.of, name) {
				t.Errorf("%s from %s: %v", name, c.from, got)
			}
			if got == nil {
				continue
			}
			begin, other := got.Begin()
			equal := engine.Limit{Calendar: got}.Equal(engine.Limit{Calendar: usual})
			if again := got.From(begin); other == equal || *again != *got {
				t.Errorf("%s from %s: %s, another one: %t, equal: %t", name, c.from, begin, other, equal)
			}
		}
	}
}

// TestCalendarSlots checks that no two calendars share a state with each other or with a plain window of the same length, except equal
// calendars of a zone that was loaded twice.
func TestCalendarSlots(t *testing.T) {
	seen := map[string]string{}
	add := func(l engine.Limit, what string) {
		name := l.Slot().String()
		if was, ok := seen[name]; ok {
			t.Errorf("%s and %s are both %s", was, what, name)
		}
		seen[name] = what
	}
	for _, zone := range enginetest.Zones() {
		again := calendars(zone)
		for i, c := range calendars(zone) {
			what := fmt.Sprintf("%s, %d × %d", zone, c.Every(), c.Unit())
			l := engine.Limit{Hits: 1, Window: 30 * 86400 * second, Calendar: c}
			add(l, what)
			same := l
			same.Calendar = again[i]
			if same.Slot() != l.Slot() || !same.Equal(l) || !l.Prepared().Equal(same) {
				t.Errorf("%s loaded twice is not one: %s and %s", what, l.Slot(), same.Slot())
			}
			same.Calendar = again[(i+1)%len(again)]
			if same.Equal(l) {
				t.Errorf("%s equals another calendar", what)
			}
		}
	}
	add(engine.Limit{Window: 30 * 86400 * second}, "30 days")
	for _, want := range []string{"fday", "fweek", "fmonth", "fmonth3", "fyear"} {
		if seen[want] == "" {
			t.Errorf("no counter of UTC is %s", want)
		}
	}
}

// TestCalendarDoesNotAllocate tests that only the first call for a window allocates.
func TestCalendarDoesNotAllocate(t *testing.T) {
	c := enginetest.Calendar("Europe/Berlin", engine.CalendarMonth, 1)
	l := engine.Limits{{Hits: 1 << 31, Window: 30 * 86400 * second, Calendar: c}}
	s, now := []*engine.State{new(engine.State)}, midnight
	if n := testing.AllocsPerRun(100, func() { l.Take(s, now, engine.Take{Cost: 1, Count: 1}); now++ }); n > 0 {
		t.Errorf("a take allocates %v times", n)
	}
}

func BenchmarkCalendar(b *testing.B) {
	for name, zone := range map[string]string{"UTC": "UTC", "Berlin": "Europe/Berlin"} {
		c := enginetest.Calendar(zone, engine.CalendarMonth, 1)
		b.Run(name+" edges", func(b *testing.B) {
			for now := midnight; b.Loop(); now += 1000 * second {
				c.Edges(now)
			}
		})
		l := engine.Limits{{Hits: 1 << 31, Window: 30 * 86400 * second, Calendar: c}}
		s := []*engine.State{new(engine.State)}
		b.Run(name+" take", func(b *testing.B) {
			b.ReportAllocs()
			for now := midnight; b.Loop(); now += second {
				l.Take(s, now, engine.Take{Cost: 1, Count: 1})
			}
		})
		b.Run(name+" first take of a window", func(b *testing.B) {
			b.ReportAllocs()
			for now := midnight; b.Loop(); now++ {
				*s[0] = engine.State{}
				l.Take(s, now, engine.Take{Cost: 1, Count: 1})
			}
		})
		location := c.Location()
		b.Run(name+" zone", func(b *testing.B) {
			for b.Loop() {
				engine.NewZone(location)
			}
		})
	}
}
