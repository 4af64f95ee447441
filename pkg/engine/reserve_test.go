package engine

import (
	"encoding/binary"
	"testing"
)

// TestReservationsWeighWhatTheyTake: a counter that always has a few reservations open does not keep the room that its
// busiest moment took.
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
