package engine

import "slices"

// Reserve configures the reservations of a counter. It is independent of the counter's algorithm. Its own state holds the open
// reservations.
//
// A reservation consumes its hits like any other take, if they fit. A rejected one consumes nothing, even if rejected hits count. Its
// record remains until the true cost is known. Then the difference is refunded or charged, and a charge counts whether it fits or not. A
// refund belongs to the window in which the hits were consumed, and has no effect after that window. A charge belongs to the window in
// which it arrives. Reserved hits do not come back to a bucket with time until the reservation ends, so that a refund does not return
// them a second time.
//
// Every call, including checks, first ends expired reservations.
type Reserve struct {
	TTL    Micros // time after which a reservation ends by itself, at least 1
	Return bool   // refund its hits then; otherwise they stay consumed

	// Repeats indicates that requests choose the names, so that the same call may come again: see [Reserve.Take] and [Reserve.Settle]. An
	// ended reservation is remembered for another TTL.
	Repeats bool
}

// ReservationID names a reservation. The zero ReservationID names none.
type ReservationID [12]byte

// Bounds of reservations.
const (
	MaxReservations = 10_000 // open reservations of a counter
	MaxEnded        = 1000   // ended reservations that a counter remembers
	expireAtOnce    = 20     // expired reservations that one call ends, and ended ones that it forgets if there are too many
)

// ReservationOutcome is the result of a call for its reservation.
type ReservationOutcome uint8

// The outcomes.
const (
	ReservationNone     ReservationOutcome = iota // no reservation: the call names none, or its hits were rejected
	ReservationOpen                               // the reservation is open
	ReservationFull                               // the hits are consumed without a record: there are too many, or one has the same name
	ReservationSettled                            // the reservation is settled
	ReservationUnknown                            // no such reservation is open; nothing has changed
	ReservationRepeated                           // with Repeats: a take of a name that has ended, which is only a check
	ReservationLate                               // with Repeats: hits of a reservation that had ended are charged
	ReservationCharged                            // with Repeats: hits of an unknown name are charged in full; Admitted is 1 if they fit
)

// held is the record of an open reservation, or of one that has ended.
type held struct {
	id      ReservationID
	hits    uint64 // of an ended one: hits that stay consumed, for which its next settlement does not pay again
	at      Micros // start of its fixed window; for other algorithms, the time of the take; of an ended one: settlements to charge
	expires Micros // of an ended one: when it is forgotten
}

// before compares records by expiry.
func (h *held) before(other *held) int {
	switch {
	case h.expires != other.expires:
		return int(max(-1, min(1, h.expires-other.expires)))
	}
	return slices.Compare(h.id[:], other.id[:])
}

// Validate returns nil if r is valid, and otherwise a [*FieldError].
func (r *Reserve) Validate() error {
	if r.TTL < 1 || r.TTL > maxWindow {
		return wrong("ttl", "is %d µs; a reservation lasts from 1 µs to 2^48 µs (8.9 years)", r.TTL)
	}
	return nil
}

// Unreserved returns the reason why l cannot have reservations: rate_limits, the key of a parameter, or the name of the algorithm. It
// returns "" if it can.
func (l *Limit) Unreserved() string {
	switch a := l.Algorithm.row(); {
	case l.Listed:
		return "rate_limits"
	case !a.reserved:
		return a.name
	case l.Debt > 0:
		return "debt"
	case l.startsLow():
		return "initial"
	case l.LateCharge:
		return "late_charge"
	case l.Calendar.Endless(): // whose counters outlive the records of reservations
		return UnitForever
	}
	return ""
}

// Keeps returns the time for which the state of reservations is kept after the last one has expired. Until then, the next call still ends
// that reservation; later, a refund would have no effect.
func (l *Limit) Keeps() Micros {
	keep := 2 * l.Window
	if l.Algorithm == TokenBucket && l.Hits > 0 {
		r := l.rate()
		keep = max(keep, r.up(amount{n: 2 * l.Burst}))
	}
	return min(keep, maxWindow)
}

// reserving is a call in progress.
type reserving struct {
	*Reserve

	limit   *Limit
	counter *State
	open    *State // n: hits of all in more.held, which are sorted by expiry
	now     Micros
	expired uint32
}

// begin ends expired reservations. l must be a single limit.
func (r *Reserve) begin(open *State, l Limits, s []*State, now Micros) reserving {
	c := reserving{Reserve: r, limit: &l[0], counter: s[0], open: open, now: inRange(now)}
	if c.now >= open.expires {
		*open = State{}
		return c
	}
	all, reserved := open.more.held, open.n
	for c.expired < expireAtOnce && int(c.expired) < len(all) && all[c.expired].expires <= c.now {
		h := &all[c.expired]
		c.limit.hold(c.counter, c.now, h.expires, reserved)
		c.end(h)
		reserved -= h.hits
		c.expired++
	}
	c.limit.hold(c.counter, c.now, c.now, reserved)
	if c.expired > 0 {
		c.remove(0, int(c.expired))
	}
	return c
}

// end remembers an expired record. It refunds the hits if Return is set.
func (c *reserving) end(h *held) {
	kept := h.hits
	if c.Return {
		c.refund(h.hits, h.at)
		kept = 0
	}
	c.remember(h.id, kept, 1)
}

// remember stores an ended reservation with the hits that stay consumed and the number of settlements that are still charged. If there
// are too many, it forgets the oldest.
func (c *reserving) remember(id ReservationID, kept uint64, due Micros) {
	if !c.Repeats {
		return
	}
	if c.open.more == nil {
		c.open.more = new(more)
	}
	ended := insert(c.open.more.ended, held{id, kept, due, c.now + c.TTL})
	if len(ended) > MaxEnded {
		ended = slices.Delete(ended, 0, expireAtOnce)
	}
	c.open.more.ended = ended
	c.open.expires = max(c.open.expires, c.now+c.TTL)
}

// lookup returns the record of a reservation that has ended and is remembered, or else the index of the open one, or −1. With Repeats, it
// first ends the reservation if that has expired.
func (c *reserving) lookup(id ReservationID) (ended *held, open int) {
	open = c.find(id)
	if !c.Repeats || c.open.Empty() {
		return nil, open
	}
	if open >= 0 && c.open.more.held[open].expires <= c.now {
		h := c.open.more.held[open]
		c.end(&h)
		c.remove(open, open+1)
		open = -1
	}
	all := c.open.more.ended
	i := slices.IndexFunc(all, func(h held) bool { return h.id == id })
	switch {
	case i < 0:
		return nil, open
	case all[i].expires <= c.now:
		c.open.more.ended = slices.Delete(all, i, i+1)
		c.remove(0, 0)
		return nil, open
	}
	return &all[i], -1
}

// remove removes the records from the i-th up to, but excluding, the j-th, and the state with its last record, open or ended.
func (c *reserving) remove(i, j int) {
	for _, h := range c.open.more.held[i:j] {
		c.open.n -= h.hits
	}
	all := slices.Delete(c.open.more.held, i, j)
	switch n := len(all); {
	case n == 0 && len(c.open.more.ended) == 0:
		*c.open = State{}
		return
	case n < cap(all)/4: // otherwise a counter that always has some would keep its peak capacity, which Weight ignores
		all = slices.Clone(all)
	}
	c.open.more.held = all
}

// find returns the index of a record, or −1.
func (c *reserving) find(id ReservationID) int {
	if c.open.Empty() {
		return -1
	}
	return slices.IndexFunc(c.open.more.held, func(h held) bool { return h.id == id })
}

// add stores a record, unless there are too many or one has the same name.
func (c *reserving) add(h held) ReservationOutcome {
	if c.open.more == nil {
		c.open.more = new(more)
	}
	all := c.open.more.held
	if len(all) >= MaxReservations || c.find(h.id) >= 0 {
		return ReservationFull
	}
	c.open.more.held = insert(all, h)
	c.open.n += h.hits
	c.open.expires = max(c.open.expires, h.expires+c.limit.Keeps())
	return ReservationOpen
}

// insert inserts a record into sorted ones.
func insert(all []held, h held) []held {
	i, _ := slices.BinarySearchFunc(all, &h, func(a held, b *held) int { return a.before(b) })
	return slices.Insert(all, i, h)
}

// report sets the fields of d that every call sets.
func (c *reserving) report(d Decision) Decision {
	d.Reserved, d.Expired = c.open.n, c.expired
	return d
}

// refund refunds hits consumed at the given time, if they still count.
func (c *reserving) refund(hits uint64, at Micros) {
	if c.limit.Algorithm.row().family == FamilyRuns {
		c.limit.giveRuns(c.counter, c.now, hits, at)
		return
	}
	var a ask
	a.set(c.now, &Take{}, true)
	c.limit.give(c.counter, &a, hits, at)
}

// Take is [Limits.Take] of a single limit with reservations, whose state is open. It ignores t.Extra. If t names a reservation, it is a
// single take: rejected hits do not count, and admitted hits leave a record.
//
// With Repeats, a second take of the same name consumes nothing and is only a check. If the reservation is open, the take settles it at
// no cost, because nothing tells a second request from the end of one that cost nothing. Each admitted take entitles the name to one
// settlement, which is then charged.
func (r *Reserve) Take(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	t.Extra = 0
	if t.Reservation == (ReservationID{}) {
		return c.report(l.Take(s, now, t))
	}
	if d, known := c.again(l, s, &t, true); known {
		return c.report(d)
	}
	t.Count = min(t.Count, 1)
	var a ask
	var d Decision
	a.set(now, &t, true)
	a.listed = true
	c.limit.take(c.counter, &a, &d)
	if a.write && d.Admitted > 0 {
		h := held{id: t.Reservation, hits: a.cost, at: c.now, expires: c.now + r.TTL}
		if c.limit.Algorithm == FixedWindow {
			h.at = Micros(d.Window)
		}
		if d.Reservation = c.add(h); d.Reservation == ReservationFull {
			c.remember(h.id, h.hits, 1)
		}
	}
	return c.report(d)
}

// again decides a take, or a peek unless write is set, if its name is known.
func (c *reserving) again(l Limits, s []*State, t *Take, write bool) (d Decision, known bool) {
	if !c.Repeats {
		return d, false
	}
	ended, i := c.lookup(t.Reservation)
	if ended == nil && i < 0 {
		return d, false
	}
	var h held
	var window Micros
	if i >= 0 && write {
		h = c.open.more.held[i]
		window = c.settle(&h, -int64(h.hits))
	}
	d = l.Peek(s, c.now, Take{Count: 1})
	switch d.Reservation = ReservationRepeated; {
	case i >= 0:
		d.Reservation, d.Difference = ReservationSettled, -int64(h.hits)
		if window != 0 {
			d.Window = int64(window)
		}
		if write {
			c.remember(h.id, 0, 1+Micros(d.Admitted))
			c.remove(i, i+1)
		}
	case write:
		ended.at += Micros(d.Admitted)
	}
	return d, true
}

// Peek is [Limits.Peek] with reservations. With Repeats, it is that of the take that t names.
func (r *Reserve) Peek(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	if t.Reservation != (ReservationID{}) {
		if d, known := c.again(l, s, &t, false); known {
			return c.report(d)
		}
	}
	return c.report(l.Peek(s, now, t))
}

// Refund is [Limits.Refund] with reservations. It does not change them.
func (r *Reserve) Refund(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	return c.report(l.Refund(s, now, t))
}

// Reset is [Limits.Reset] and drops the reservations too. Later settlements do not find them.
func (r *Reserve) Reset(open *State, l Limits, s []*State, now Micros) Decision {
	*open = State{}
	return l.Reset(s, now)
}

// Settle ends the reservation that t names, whose true cost is t.Cost. If the reservation was larger, the difference is refunded to the
// window of the reservation; if it was smaller, the difference is charged. A settlement is always admitted. Left counts the hits left
// afterwards, and Window is the window of the difference, if any. If no such reservation is open, nothing changes: it was settled before,
// it has expired, or it belongs to another counter.
//
// With Repeats, an expired reservation, or one that a take ended, is charged for what it has not consumed yet, and an unknown name in
// full. A cost of 0 withdraws the reservation: its name is not remembered.
func (r *Reserve) Settle(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	outcome, window, difference := ReservationUnknown, Micros(0), int64(0)
	cost := min(t.Cost, MaxHits)
	switch ended, i := c.lookup(t.Reservation); {
	case ended != nil:
		if cost > 0 && ended.at > 0 {
			outcome, difference = ReservationLate, int64(left(cost, ended.hits))
			ended.hits, ended.at = 0, ended.at-1
			c.settle(nil, difference)
		}
	case i >= 0:
		h := open.more.held[i]
		if h.expires <= c.now { // one call does not end all expired reservations
			c.end(&h)
		} else {
			outcome = ReservationSettled
			difference = int64(cost) - int64(h.hits)
			window = c.settle(&h, difference)
		}
		if cost > 0 {
			c.remember(h.id, 0, 0)
		}
		c.remove(i, i+1)
	case r.Repeats && cost > 0:
		d := c.charge(cost)
		d.Reservation = ReservationCharged
		return c.report(d)
	}
	d := l.Refund(s, now, Take{})
	d.Admitted, d.Reservation, d.Difference = 1, outcome, difference
	if window != 0 {
		d.Window = int64(window)
	}
	return c.report(d)
}

// settle refunds or charges the difference. It returns the window to which hits were refunded. h may be nil for a charge.
func (c *reserving) settle(h *held, difference int64) (window Micros) {
	switch {
	case difference < 0:
		c.refund(uint64(-difference), h.at)
		if c.limit.Algorithm == FixedWindow {
			return h.at
		}
	case difference > 0:
		c.charge(uint64(difference))
	}
	return 0
}

// charge consumes hits whether they fit or not.
func (c *reserving) charge(hits uint64) (d Decision) {
	var a ask
	charged := *c.limit
	charged.CountRefused = true
	a.set(c.now, &Take{Cost: hits, Count: 1}, true)
	charged.take(c.counter, &a, &d)
	return d
}

// hold keeps the reserved hits of a token bucket from coming back before the given time.
func (l *Limit) hold(s *State, now, until Micros, reserved uint64) {
	if l.Algorithm != TokenBucket || l.Hits == 0 {
		return
	}
	var v bucketView
	v.set(l, s, now)
	// A larger limit may have reserved more than the burst.
	held := v.sub(amount{n: min(reserved, l.Burst)}, v.in(max(0, v.as-l.step(until))))
	if v.sub(held, v.spent) == (amount{}) {
		return
	}
	v.spent = held
	v.write(l, s)
}
