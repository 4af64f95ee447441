package redis

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// monthly returns a limit with windows of a calendar month.
func monthly(hits uint64, zone string) engine.Limit {
	return engine.Limit{
		Hits: hits, Window: 30 * 24 * 60 * minute, CountRefused: true, Calendar: enginetest.Calendar(zone, engine.CalendarMonth, 1),
	}
}

// TestCalendarSkew checks that replicas whose clocks differ from that of Redis by up to a window decide like the engine at the time of
// Redis.
func TestCalendarSkew(t *testing.T) {
	var now, here engine.Micros
	p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
	p.clock = func() engine.Micros { return here }
	random := rand.New(rand.NewPCG(3, 4))
	units := []engine.CalendarUnit{engine.CalendarDay, engine.CalendarWeek, engine.CalendarMonth, engine.CalendarYear}
	for i := range 60 {
		zones := enginetest.Zones()
		c := enginetest.Calendar(zones[random.IntN(len(zones))], units[random.IntN(len(units))], 1)
		l := engine.Limits{{Hits: 5, Window: minute, Calendar: c, CountRefused: i%2 == 0}}
		now = engine.Micros(time.Date(2026, 1, 1+random.IntN(365), random.IntN(24), 0, 0, 0, time.UTC).UnixMicro())
		var state engine.State
		for range 40 {
			e := c.Edges(now)
			if random.IntN(3) == 0 { // at an edge, or just before it
				now = e[3] - engine.Micros(random.IntN(2))
			} else {
				now += engine.Micros(random.Int64N(int64(e[3]-e[2]) / 4))
			}
			e = c.Edges(now)
			window := int64(e[3] - e[2])
			here = now + engine.Micros(random.Int64N(2*window+1)-window)
			if random.IntN(4) == 0 {
				here = now + []engine.Micros{engine.Micros(window), engine.Micros(-window)}[random.IntN(2)]
			}
			take := engine.Take{Cost: 1 + random.Uint64N(3), Count: 1}
			want := l.Take([]*engine.State{&state}, now, take)
			if diff := cmp.Diff(want, p.one(t, backend.Op{Key: keyOf(i), Limits: l, Take: take})); diff != "" {
				t.Fatalf("%s, unit %d, at %v by Redis and %v here: (-engine's +got):\n%s", c.Location(), c.Unit(), now, here, diff)
			}
		}
	}
}

// TestCalendarClockFarOff checks that a replica whose clock is wrong by years still has consecutive windows of about a month, each with
// the limit, and that a replica with the correct clock accepts a window that has begun.
func TestCalendarClockFarOff(t *testing.T) {
	var now, here engine.Micros
	p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
	p.clock = func() engine.Micros { return here }
	l := engine.Limits{monthly(3, "Europe/Berlin")}
	start := engine.Micros(time.Date(2026, 5, 20, 0, 0, 0, 0, time.UTC).UnixMicro())
	for i, off := range []time.Duration{50 * 365 * 24 * time.Hour, -50 * 365 * 24 * time.Hour, 3 * 366 * 24 * time.Hour, -100 * 24 * time.Hour} {
		admitted, after := uint64(0), start
		for now = start; now < start+365*24*60*minute; now += 6 * 60 * minute {
			here = now + engine.Micros(off/time.Microsecond)
			if now%(24*60*minute) == 0 {
				here = now
			}
			d := p.one(t, backend.Op{Key: keyOf(i), Limits: l, Take: engine.Take{Cost: 1, Count: 1}})
			admitted += d.Admitted
			end := now + engine.Micros(d.ResetAfter/time.Microsecond)
			if d.ResetAfter <= 0 || d.ResetAfter > 31*24*time.Hour || engine.Micros(d.Window) > now || end-engine.Micros(d.Window) < 28*24*60*minute-60*minute {
				t.Fatalf("%v off, at %v: %+v, want the window of about a month that it is in", off, now, d)
			}
			if d.Admitted > 0 && now < after && d.Left == 3 {
				t.Fatalf("%v off, at %v: a window has begun before %v, when the last one ends", off, now, after)
			}
			after = end
		}
		if admitted < 12*3-3 || admitted > 14*3 {
			t.Errorf("%v off: %d hits in a year, want 3 a month", off, admitted)
		}
	}
}

// TestForever: a window that never ends is decided as by the engine, whatever the time, alone and in a list; its key has no TTL.
func TestForever(t *testing.T) {
	var now engine.Micros
	s := redistest.Start(t)
	p := newPlain(t, s, func() engine.Micros { return now })
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 20 {
		l := engine.Limits{{
			Hits: 40, Window: 1 << 48, LateCharge: i%4 == 0, CountRefused: i%4 == 0,
			Calendar: enginetest.Calendar("UTC", engine.CalendarForever, 1),
		}}
		if i%4 == 1 {
			l = append(l, engine.Limit{Hits: 5, Window: minute})
			l[0].Listed, l[1].Listed = true, true
		}
		states := []*engine.State{{}, {}}[:len(l)]
		now = engine.Micros(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		for step := range 60 {
			now += engine.Micros(random.Int64N(1 << 45)) // up to a year
			if step == 40 {
				l[0].Hits = 1e15 - uint64(i) // a top-up
			}
			take := engine.Take{Cost: random.Uint64N(9), Count: 1 + random.Uint64N(2)}
			mode, want := backend.Take, engine.Decision{}
			switch random.IntN(6) {
			case 0:
				mode, take.Count = backend.Refund, 0
				want = l.Refund(states, now, take)
			case 1:
				mode = backend.Peek
				want = l.Peek(states, now, take)
			default:
				want = l.Take(states, now, take)
			}
			if diff := cmp.Diff(want, p.one(t, backend.Op{Key: keyOf(i), Mode: mode, Limits: l, Take: take})); diff != "" {
				t.Fatalf("%d, step %d, mode %v, %+v: (-engine's +got):\n%s", i, step, mode, take, diff)
			}
			if len(l) == 1 && (want.ResetAfter != engine.Never || want.Admitted == 0 && mode == backend.Take && want.RetryAfter != engine.Never) {
				t.Fatalf("%+v, want no end", want)
			}
		}
	}
	client := s.Client()
	keys, err := client.Keys(t.Context(), "*fforever*").Result()
	if err != nil || len(keys) != 20 {
		t.Fatalf("%q, %v, want 20 keys", keys, err)
	}
	for _, key := range keys {
		if ttl, err := client.TTL(t.Context(), key).Result(); err != nil || ttl != -1 {
			t.Errorf("%q has a TTL of %v, %v, want none", key, ttl, err)
		}
	}
}
