package engine

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"
)

// TestReservationsWeighWhatTheyTake checks that a counter that always has a few open reservations does not keep its peak capacity.
func TestReservationsWeighWhatTheyTake(t *testing.T) {
	const many, few = 5000, 10
	var open, counter State
	r := &Reserve{TTL: 3_600_000_000}
	l, s := Limits{{Algorithm: FixedWindow, Hits: many, Window: 3_600_000_000}}, []*State{&counter}
	named := func(n int) (take Take) {
		take = Take{Cost: 1, Count: 1}
		binary.BigEndian.PutUint32(take.Reservation[:], uint32(n+1))
		return take
	}
	for n := range many {
		if d := r.Take(&open, l, s, 1, named(n)); d.Reservation != ReservationOpen {
			t.Fatalf("the outcome is %d, want an open reservation", d.Reservation)
		}
	}
	for n := range many - few {
		if d := r.Settle(&open, l, s, 2, named(n)); d.Reservation != ReservationSettled {
			t.Fatalf("the outcome is %d, want a settled reservation", d.Reservation)
		}
	}
	if n, room := len(open.more.held), cap(open.more.held); n != few || room > 8*few {
		t.Errorf("%d reservations take the room of %d, want %d in that of at most %d", n, room, few, 8*few)
	}
	if w := open.Weight(); w > few {
		t.Errorf("they weigh %d", w)
	}
}

// TestReturnedReservationsLeaveNothing checks that settling all reservations with 0 leaves a counter as if there had been none. Other
// calls must refund only hits that they consumed, because the oldest hits are refunded first.
func TestReturnedReservationsLeaveNothing(t *testing.T) {
	for _, l := range []Limit{
		{Algorithm: SlidingWindow, Hits: 100, Window: 60e6, Precision: 6},
		{Algorithm: SlidingWindow, Hits: 100, Window: 60e6, Precision: 1},
		{Algorithm: FixedWindow, Hits: 100, Window: 60e6},
		{Algorithm: FixedWindow, Hits: 100, Window: 60e6, Align: AlignFirst},
	} {
		t.Run(l.Algorithm.String(), rapid.MakeCheck(func(t *rapid.T) { returnAll(t, Limits{l}) }))
	}
}

func returnAll(t *rapid.T, l Limits) {
	var open, counter, twin State
	r, s, without := &Reserve{TTL: 3600e6}, []*State{&counter}, []*State{&twin}
	now := Micros(1e15)
	later := func() { now += rapid.SampledFrom([]Micros{0, 1, 3e6, 10e6, 25e6}).Draw(t, "later") }
	var reserved []ReservationID
	for i := range rapid.IntRange(1, 20).Draw(t, "calls") {
		later()
		k := Take{Cost: rapid.Uint64Range(1, 40).Draw(t, "cost"), Count: 1}
		switch kind := rapid.IntRange(0, 3).Draw(t, "kind"); {
		case kind == 0 && len(reserved) > 0:
			r.Settle(&open, l, s, now, Take{Reservation: reserved[0]})
			reserved = reserved[1:]
		case kind < 3:
			binary.BigEndian.PutUint32(k.Reservation[:], uint32(i+1))
			if r.Take(&open, l, s, now, k).Reservation == ReservationOpen {
				reserved = append(reserved, k.Reservation)
				if l[0].Align == AlignFirst { // so that the twin's window begins at the same time
					l.Take(without, now, k)
					l.Refund(without, now, k)
				}
			}
		default:
			if r.Take(&open, l, s, now, k).Admitted > 0 {
				l.Take(without, now, k)
			}
		}
	}
	for _, id := range reserved {
		r.Settle(&open, l, s, now, Take{Reservation: id})
	}
	for range 5 {
		if got, want := l.Peek(s, now, Take{Cost: 100, Count: 1}), l.Peek(without, now, Take{Cost: 100, Count: 1}); got != want {
			t.Fatalf("%+v, without reservations %+v", got, want)
		}
		later()
	}
}
