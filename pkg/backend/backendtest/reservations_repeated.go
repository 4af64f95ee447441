package backendtest

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// call is one call of a request: a take of an estimate of 40, or a settlement if it has hits. It also contains the expected outcome, the
// hits charged or, if negative, refunded, and the hits left afterwards.
type call struct {
	hits       uint64
	outcome    engine.ReservationOutcome
	difference int64
	left       uint64
}

// repeatedNames makes the calls of a request whose ID repeats, with a limit of 100.
func repeatedNames(t *testing.T, s *subject) {
	const ask, ttl = 0, 10 * minute
	const (
		open, settled     = engine.ReservationOpen, engine.ReservationSettled
		unknown, repeated = engine.ReservationUnknown, engine.ReservationRepeated
		late, charged     = engine.ReservationLate, engine.ReservationCharged
	)
	for _, x := range []struct {
		name          string
		before, after []call // before and after the TTL
		back          bool   // on_expiry: return
	}{
		{"settled", []call{{ask, open, 0, 60}, {30, settled, -10, 70}}, nil, false},
		{"cost more", []call{{ask, open, 0, 60}, {55, settled, 15, 45}}, nil, false},
		{"settled twice", []call{{ask, open, 0, 60}, {30, settled, -10, 70}, {30, unknown, 0, 70}, {30, unknown, 0, 70}}, nil, false},
		{"without cost", []call{{ask, open, 0, 60}, {ask, settled, -40, 100}}, nil, false},
		{"asked twice", []call{{ask, open, 0, 60}, {ask, settled, -40, 100}, {30, late, 30, 70}}, nil, false},
		{"three at a time", []call{
			{ask, open, 0, 60},
			{ask, settled, -40, 100},
			{ask, repeated, 0, 100},
			{30, late, 30, 70},
			{20, late, 20, 50},
			{10, late, 10, 40},
			{10, unknown, 0, 40},
		}, nil, false},
		{"used again", []call{{ask, open, 0, 60}, {30, settled, -10, 70}, {ask, repeated, 0, 70}, {35, late, 35, 35}, {9, unknown, 0, 35}}, nil, false},
		{"without a first call", []call{{30, charged, 0, 70}, {30, charged, 0, 40}, {130, charged, 0, 0}}, nil, false},
		{"kept", []call{{ask, open, 0, 60}}, []call{{ask, repeated, 0, 60}, {55, late, 15, 45}, {30, late, 30, 15}, {30, unknown, 0, 15}}, false},
		{"kept, cost less", []call{{ask, open, 0, 60}}, []call{{30, late, 0, 60}, {30, unknown, 0, 60}}, false},
		{"returned", []call{{ask, open, 0, 60}}, []call{{55, late, 55, 45}, {30, unknown, 0, 45}}, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, l := range []engine.Limit{fixed(100, day), sliding(100, day, 10), bucket(100, 70_000*hour, 100)} {
				c := reserves(t, s, engine.Reserve{TTL: ttl, Return: x.back, Repeats: true}, l)
				c.calls(x.before)
				c.after(10 * time.Minute)
				c.calls(x.after)
				c.after(10 * time.Minute) // the names are forgotten by then
				c.gives(1000)
				c.calls([]call{{ask, open, 0, 60}, {40, settled, 0, 60}})
			}
		})
	}
}

// calls makes the calls of a request, each after a check that must return the same as the take.
func (c *trace) calls(all []call) {
	c.Helper()
	for i, x := range all {
		op := backend.Op{Mode: backend.Take, Take: engine.Take{Cost: 40, Count: 1, Reservation: idOf(1)}}
		if x.hits > 0 {
			op.Mode, op.Take.Cost = backend.Settle, x.hits
		} else {
			look := op
			look.Mode = backend.Peek
			is(c, "a look", c.do(look).Admitted, 1)
		}
		d := c.do(op)
		if d.Reservation != x.outcome || d.Difference != x.difference {
			c.Fatalf("call %d: outcome %d, difference %d, want %d and %d", i, d.Reservation, d.Difference, x.outcome, x.difference)
		}
		c.left(x.left)
	}
}

// noneRemembered checks that no state is left once the last ended reservation is forgotten: a shorter limit forgets others sooner.
func noneRemembered(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: minute, Repeats: true}, bucket(1, hour, 100))
	c.books(1, 40, admitted)
	c.settles(1, 40)
	c.after(time.Minute)
	c.settles(1, 40)
	c.limits = engine.Limits{bucket(100, second, 100)}
	c.books(2, 10, admitted)
	c.after(time.Minute + 3*time.Second)
	is(c, "an expired reservation", c.settles(2, 10).Reservation, engine.ReservationCharged)
}

// manyEnded checks that MaxEnded ended reservations are remembered, and that the oldest are then forgotten.
func manyEnded(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 60 * minute, Repeats: true}, fixed(1_000_000, day))
	for n := range engine.MaxEnded {
		c.books(n+1, 2, admitted)
		c.settles(n+1, 1)
	}
	is(c, "the oldest", c.settles(1, 1).Reservation, engine.ReservationUnknown)
	c.after(time.Second)
	c.books(20_000, 2, admitted)
	c.settles(20_000, 1)
	is(c, "the oldest", c.settles(1, 1).Reservation, engine.ReservationCharged)
	is(c, "the newest", c.settles(20_000, 1).Reservation, engine.ReservationUnknown)
	is(c, "another", c.settles(engine.MaxEnded, 1).Reservation, engine.ReservationUnknown)
}

// refusedRecord checks that a request is charged once if there is no room for its record.
func refusedRecord(t *testing.T, s *subject) {
	c := fullOfReservations(t, s, true)
	is(c, "the outcome", c.books(20_000, 5, admitted).Reservation, engine.ReservationFull)
	is(c, "what is charged", c.settles(20_000, 8).Difference, 3)
	c.left(1_000_000 - 2*engine.MaxReservations - 8)
	is(c, "the outcome", c.settles(20_000, 8).Reservation, engine.ReservationUnknown)
}
