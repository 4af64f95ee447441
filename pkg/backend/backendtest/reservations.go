package backendtest

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// testReservations checks reservations and settlements, on single counters and in random sequences.
func testReservations(t *testing.T, h Harness) {
	s := open(t, h)
	cases := map[string]func(*testing.T, *subject){
		"settled once":        settledOnce,
		"an edge":             settledAfterTheEdge,
		"charged into debt":   chargedIntoDebt,
		"expired, kept":       expiredAndKept,
		"expired, returned":   expiredAndReturned,
		"a bucket holds":      bucketHolds,
		"a bucket has held":   bucketHasHeld,
		"a cell that is gone": settledAfterItsCell,
		"its own cell":        settledInItsCell,
		"many expire at once": manyExpire,
		"repeated names":      repeatedNames,
		"reset":               resetWithReservations,
		"none is remembered":  noneRemembered,
	}
	if !h.Brief {
		maps.Copy(cases, map[string]func(*testing.T, *subject){
			"too many":             tooManyReservations,
			"many have ended":      manyEnded,
			"refused a record":     refusedRecord,
			"a day, by a calendar": func(t *testing.T, s *subject) { dayOfTraffic(t, s, calendarDay(t)) },
			"a day of hours":       func(t *testing.T, s *subject) { dayOfTraffic(t, s, fixed(22_000, hour)) },
			"a day of short spans": func(t *testing.T, s *subject) { dayOfTraffic(t, s, fixed(4_000, 7*minute)) },
		})
	}
	for name, play := range cases {
		t.Run(name, func(t *testing.T) { play(t, s) })
	}
	for _, a := range []engine.Algorithm{engine.FixedWindow, engine.SlidingWindow, engine.TokenBucket} {
		t.Run("random "+a.String(), func(t *testing.T) { checkRandom(t, s, h, rulesReserving(a, false)) })
		t.Run("random, repeated, "+a.String(), func(t *testing.T) { checkRandom(t, s, h, rulesReserving(a, true)) })
	}
}

func calendarDay(t *testing.T) engine.Limit {
	t.Helper()
	vienna, err := time.LoadLocation("Europe/Vienna")
	if err != nil {
		t.Fatal(err)
	}
	l := fixed(1_000_000, day)
	l.Calendar = engine.NewZone(vienna).Calendar(engine.CalendarDay, 1)
	return l
}

// rulesReserving draws rules of an algorithm, most of them with reservations.
func rulesReserving(a engine.Algorithm, repeats bool) func(*rapid.T) rules {
	limit := func(a engine.Algorithm) *rapid.Generator[engine.Limit] {
		return enginetest.LimitOf(a).Filter(func(l engine.Limit) bool { return l.Unreserved() == "" })
	}
	return func(t *rapid.T) rules {
		l := limit(a).Draw(t, "limit")
		r := &engine.Reserve{Repeats: repeats, TTL: rapid.SampledFrom([]engine.Micros{1, 500_000, second, 10 * minute, day}).Draw(t, "ttl")}
		r.Return = rapid.Bool().Draw(t, "return")
		other := *r
		other.Return = !r.Return
		other.TTL *= 2
		changed := enginetest.Changed(l).Filter(func(l engine.Limit) bool { return l.Unreserved() == "" })
		return rules{
			limits:    []engine.Limits{{l}, {l.Prepared()}, {changed.Draw(t, "changed")}, {limit(engine.FixedWindow).Draw(t, "another")}},
			penalties: []*engine.Penalty{nil},
			reserves:  []*engine.Reserve{r, r, r, r, r, r, &other, nil},
		}
	}
}

// reserve makes op part of the use of reservations.
func (g *sequence) reserve(t *rapid.T, op *backend.Op) {
	op.Reserve = rapid.SampledFrom(g.reserves).Draw(t, "reserve")
	if op.Reserve == nil {
		return
	}
	op.Take.Extra = 0
	kind := rapid.IntRange(0, 5).Draw(t, "reserves")
	if kind > 3 || op.Mode.Resets() {
		return
	}
	op.Take.Reservation = idOf(rapid.IntRange(1, 12).Draw(t, "id"))
	op.Take.Count, op.Take.Window = 1, 0
	op.Mode = backend.Take
	switch {
	case kind > 1:
		op.Mode = backend.Settle
	case op.Reserve.Repeats && kind == 1 && rapid.Bool().Draw(t, "look"):
		op.Mode = backend.Peek
	}
}

// idOf returns the n-th ID of a reservation.
func idOf(n int) (id engine.ReservationID) {
	binary.BigEndian.PutUint64(id[4:], uint64(n))
	return id
}

// reserves starts a trace of a counter with reservations.
func reserves(t *testing.T, s *subject, r engine.Reserve, l engine.Limit) *trace {
	t.Helper()
	c := counter(t, s, l)
	c.reserve = &r
	return c
}

// books reserves hits under the n-th ID, and expects the mark.
func (c *trace) books(n int, hits uint64, mark string) engine.Decision {
	c.Helper()
	d := c.do(backend.Op{Take: engine.Take{Cost: hits, Count: 1, Reservation: idOf(n)}})
	if got := markOf(d); got != mark {
		c.Fatalf("reserving %d hits was answered %s, want %s: %+v", hits, got, mark, d)
	}
	return d
}

// settles settles the n-th reservation.
func (c *trace) settles(n int, cost uint64) engine.Decision {
	c.Helper()
	return c.do(backend.Op{Mode: backend.Settle, Take: engine.Take{Cost: cost, Count: 1, Reservation: idOf(n)}})
}

func (c *trace) left(want uint64) {
	c.Helper()
	is(c, "what is left", c.do(backend.Op{Mode: backend.Peek, Take: engine.Take{Cost: 1, Count: 1}}).Left, want)
}

func settledOnce(t *testing.T, s *subject) {
	for _, l := range []engine.Limit{fixed(100, hour), sliding(100, hour, 10), bucket(100, 1000*hour, 100)} {
		c := reserves(t, s, engine.Reserve{TTL: 10 * minute}, l)
		is(c, "the first", c.books(1, 60, admitted).Reservation, engine.ReservationOpen)
		c.books(2, 60, rejected)
		is(c, "another", c.books(3, 40, admitted).Reserved, 100)
		c.left(0)
		d := c.settles(1, 25)
		is(c, "the outcome", d.Reservation, engine.ReservationSettled)
		is(c, "the difference", d.Difference, -35)
		is(c, "what is reserved", d.Reserved, 40)
		c.left(35)
		for _, n := range []int{1, 2, 7} { // settled before; rejected; of another counter
			d = c.settles(n, 0)
			is(c, "the outcome", d.Reservation, engine.ReservationUnknown)
			is(c, "the difference", d.Difference, 0)
		}
		c.left(35)
		c.settles(3, 40)
		c.left(35)
	}
}

func settledAfterTheEdge(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 2 * 60 * minute}, fixed(100, hour))
	c.at(59 * time.Minute)
	c.books(1, 60, admitted)
	c.books(2, 30, admitted)
	c.at(61 * time.Minute)
	c.left(100) // the estimates are not charged again
	c.takes("✓")
	d := c.settles(1, 10)
	is(c, "what is refunded", d.Difference, -50)
	is(c, "the window that it belongs to", d.Window, int64(start))
	c.left(99) // the refund does not affect this window
	is(c, "what is charged", c.settles(2, 35).Difference, 5)
	c.left(94)
}

func chargedIntoDebt(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 10 * minute}, fixed(100, hour))
	c.books(1, 90, admitted)
	c.settles(1, 250)
	c.left(0)
	c.gives(140)
	c.left(0)
	c.gives(11)
	c.left(1)
	c = reserves(t, s, engine.Reserve{TTL: 10 * minute}, bucket(100, 100*second, 100))
	c.books(1, 90, admitted)
	c.settles(1, 150)
	c.after(50 * time.Second)
	c.left(0)
	c.after(time.Second)
	c.left(1)
}

func expiredAndKept(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 10 * minute}, fixed(100, hour))
	c.books(1, 60, admitted)
	c.at(10*time.Minute - time.Microsecond)
	c.left(40)
	c.at(10 * time.Minute)
	d := c.settles(1, 0)
	is(c, "the outcome", d.Reservation, engine.ReservationUnknown)
	is(c, "how many have expired", d.Expired, 1)
	is(c, "what is reserved", d.Reserved, 0)
	c.left(40)
}

func expiredAndReturned(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 10 * minute, Return: true}, fixed(100, hour))
	c.books(1, 60, admitted)
	c.at(10 * time.Minute)
	c.left(100)
	c.settles(1, 70)
	c.left(100)
	c.at(55 * time.Minute)
	c.books(2, 60, admitted)
	c.at(65 * time.Minute)
	c.takes("✓")
	c.left(99) // the window of the hits has ended
}

// bucketHolds checks that reserved hits do not come back before the settlement, because they would come back twice.
func bucketHolds(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 60 * minute}, bucket(100, 100*second, 100))
	c.books(1, 60, admitted)
	c.at(time.Hour - time.Microsecond)
	c.left(40)
	c.spend(40, admitted)
	c.settles(1, 0)
	c.left(60)
}

// bucketHasHeld checks that unsettled hits come back from the reservation's expiry on, whenever the next call arrives.
func bucketHasHeld(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 10 * minute}, bucket(100, 100*second, 100))
	c.books(1, 60, admitted)
	c.at(5 * time.Minute)
	c.books(2, 20, admitted)
	c.at(10*time.Minute + 30*time.Second)
	c.left(50)
	c.at(15*time.Minute - time.Second)
	c.left(80)
	c.at(15*time.Minute + 5*time.Second)
	c.left(85)
	c = reserves(t, s, engine.Reserve{TTL: 10 * minute, Return: true}, bucket(100, 100*second, 100))
	c.books(1, 60, admitted)
	c.at(5 * time.Minute)
	c.books(2, 20, admitted)
	c.at(10*time.Minute + 30*time.Second)
	c.left(80)
}

func settledAfterItsCell(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 600 * minute}, sliding(100, hour, 6))
	c.books(1, 60, admitted)
	c.books(2, 10, admitted)
	c.at(69 * time.Minute)
	c.settles(2, 0)
	c.spend(40, admitted)
	c.left(0)
	c.at(70 * time.Minute)
	c.left(60)
	c.settles(1, 0)
	c.left(60)
}

// settledInItsCell checks that a refund removes hits from the sub-window of their reservation, whether that is the first, the last or one
// in between, and not from the oldest.
func settledInItsCell(t *testing.T, s *subject) {
	for n, lefts := range [][]uint64{{41, 44, 67, 100}, {51, 64, 67, 100}, {61, 74, 97, 100}} {
		c := reserves(t, s, engine.Reserve{TTL: 600 * minute}, sliding(100, hour, 6))
		for i, hits := range []uint64{10, 20, 30} {
			c.at(time.Duration(i) * 10 * time.Minute)
			c.books(i+1, hits, admitted)
			c.spend(3, admitted)
		}
		for i, at := range []time.Duration{30, 70, 80, 90} {
			c.at(at * time.Minute)
			c.settles(n+1, 0)
			c.left(lefts[i])
		}
	}
}

// fullOfReservations starts a trace of a counter with as many reservations as possible, of two hits each.
func fullOfReservations(t *testing.T, s *subject, repeats bool) *trace {
	c := reserves(t, s, engine.Reserve{TTL: 600 * minute, Repeats: repeats}, fixed(1_000_000, day))
	ops := make([]backend.Op, 100)
	for n := 0; n < engine.MaxReservations; n += len(ops) {
		for i := range ops {
			ops[i] = backend.Op{Key: c.key, Limits: c.limits, Reserve: c.reserve, Take: engine.Take{Cost: 2, Count: 1, Reservation: idOf(n + i + 1)}}
		}
		c.p.apply(c, ops...)
	}
	return c
}

func tooManyReservations(t *testing.T, s *subject) {
	c := fullOfReservations(t, s, false)
	d := c.books(20_000, 5, admitted)
	is(c, "the outcome", d.Reservation, engine.ReservationFull)
	is(c, "what is reserved", d.Reserved, 2*engine.MaxReservations)
	c.left(1_000_000 - 2*engine.MaxReservations - 5)
	c.settles(20_000, 0)
	c.left(1_000_000 - 2*engine.MaxReservations - 5)
	is(c, "the outcome of one of the same name", c.books(5_000, 7, admitted).Reservation, engine.ReservationFull)
	c.settles(7_777, 0)
	is(c, "the outcome where there is room", c.books(20_000, 5, admitted).Reservation, engine.ReservationOpen)
}

func manyExpire(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: minute, Return: true}, fixed(1000, day))
	for n := range 50 {
		c.books(n+1, 2, admitted)
	}
	c.at(time.Minute)
	is(c, "how many have expired", c.settles(50, 9).Expired, 20) // including the 50th, which was not among them
	c.left(1000 - 2*9)
	c.left(1000)
}

func resetWithReservations(t *testing.T, s *subject) {
	c := reserves(t, s, engine.Reserve{TTL: 10 * minute}, fixed(100, hour))
	c.books(1, 60, admitted)
	c.resets(false)
	c.left(100)
	c.takes("✓✓✓")
	c.settles(1, 0)
	c.left(97)
}

// dayOfTraffic checks that exactly the true cost is consumed over a day and its boundaries. It compares the count of each window just
// before its end with the books. A refund to a past window appears only in the books.
func dayOfTraffic(t *testing.T, s *subject, l engine.Limit) {
	type stream struct {
		n                  int
		ends               engine.Micros
		began              int64 // start of the window
		estimate, trueCost uint64
	}
	c := reserves(t, s, engine.Reserve{TTL: 20 * minute}, l)
	c.p.twins = nil
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // traffic that is the same each time
	var open []stream
	books := map[int64]int64{} // hits consumed, by start of the window
	var trueCost int64
	crossed, rejections := 0, 0
	move := func(now engine.Micros) {
		if _, end := l.WindowAt(c.p.now); end <= now {
			c.p.now = end - 1
			d := c.do(backend.Op{Mode: backend.Peek, Take: engine.Take{Count: 1}})
			is(c, "what is left of the window that ends now", int64(d.Left), max(0, int64(l.Hits)-books[d.Window]))
		}
		c.p.now = now
	}
	settle := func(due func(stream) bool) {
		open = slices.DeleteFunc(open, func(o stream) bool {
			if !due(o) {
				return false
			}
			d := c.settles(o.n, o.trueCost)
			is(c, "the outcome", d.Reservation, engine.ReservationSettled)
			if books[d.Window] += d.Difference; d.Difference != 0 && o.began != int64(first(l.WindowAt(c.p.now))) {
				crossed++
			}
			return true
		})
	}
	for n := 1; c.p.now < start+day; n++ {
		move(c.p.now + engine.Micros(random.Int64N(int64(40*second))))
		settle(func(o stream) bool { return o.ends <= c.p.now })
		window, estimate := int64(first(l.WindowAt(c.p.now))), uint64(random.IntN(400)+1)
		if books[window]+int64(estimate) > int64(l.Hits) {
			c.books(n, estimate, rejected)
			rejections++
			continue
		}
		is(c, "the window", c.books(n, estimate, admitted).Window, window)
		books[window] += int64(estimate)
		o := stream{n: n, ends: c.p.now + engine.Micros(random.Int64N(int64(10*minute))), began: window, estimate: estimate}
		o.trueCost = uint64(random.IntN(int(estimate) + 100*random.IntN(2)))
		trueCost += int64(o.trueCost)
		open = append(open, o)
	}
	move(c.p.now + 10*minute)
	settle(func(stream) bool { return true })
	var spent int64
	for _, hits := range books {
		spent += hits
	}
	is(c, "what was spent", spent, trueCost)
	c.Logf("%d hits in %d windows; %d estimates were rejected, %d streams ended after their window", spent, len(books), rejections, crossed)
	if crossed == 0 || rejections == 0 && l.Calendar == nil {
		c.Fatal("this shows little: no stream crossed an edge, or none was rejected")
	}
}

func first[A, B any](a A, _ B) A { return a }
