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
}

// ReservationID names a reservation. The zero ReservationID names none.
type ReservationID [12]byte

// Bounds of reservations.
const (
	MaxReservations = 10_000 // open reservations of a counter
	expireAtOnce    = 20     // expired reservations that one call ends
)

// ReservationOutcome is the result of a call for its reservation.
type ReservationOutcome uint8

// The outcomes.
const (
	ReservationNone    ReservationOutcome = iota // no reservation: the call names none, or its hits were rejected
	ReservationOpen                              // the reservation is open
	ReservationFull                              // the hits are consumed without a record: there are too many, or one has the same name
	ReservationSettled                           // the reservation is settled
	ReservationUnknown                           // no such reservation is open; nothing has changed
)

// held is the record of an open reservation.
type held struct {
	id      ReservationID
	hits    uint64
	at      Micros // start of its fixed window; for other algorithms, the time of the take
	expires Micros
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
	c.remove(0, int(c.expired))
	return c
}

// end refunds the hits of an expired record if Return is set.
func (c *reserving) end(h *held) {
	if c.Return {
		c.refund(h.hits, h.at)
	}
}

// remove removes the records from the i-th up to, but excluding, the j-th.
func (c *reserving) remove(i, j int) {
	for _, h := range c.open.more.held[i:j] {
		c.open.n -= h.hits
	}
	all := slices.Delete(c.open.more.held, i, j)
	switch n := len(all); {
	case n == 0:
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
	i, _ := slices.BinarySearchFunc(all, &h, func(a held, b *held) int { return a.before(b) })
	c.open.more.held = slices.Insert(all, i, h)
	c.open.n += h.hits
	c.open.expires = max(c.open.expires, h.expires+c.limit.Keeps())
	return ReservationOpen
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
func (r *Reserve) Take(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	t.Extra = 0
	if t.Reservation == (ReservationID{}) {
		return c.report(l.Take(s, now, t))
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
		d.Reservation = c.add(h)
	}
	return c.report(d)
}

// Peek is [Limits.Peek] with reservations.
func (r *Reserve) Peek(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
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
func (r *Reserve) Settle(open *State, l Limits, s []*State, now Micros, t Take) Decision {
	c := r.begin(open, l, s, now)
	outcome, window, difference := ReservationUnknown, Micros(0), int64(0)
	if i := c.find(t.Reservation); i >= 0 {
		h := open.more.held[i]
		if h.expires <= c.now { // one call does not end all expired reservations
			c.end(&h)
		} else {
			outcome = ReservationSettled
			difference = int64(min(t.Cost, MaxHits)) - int64(h.hits)
			window = c.settle(&h, difference)
		}
		c.remove(i, i+1)
	}
	d := l.Refund(s, now, Take{})
	d.Admitted, d.Reservation, d.Difference = 1, outcome, difference
	if window != 0 {
		d.Window = int64(window)
	}
	return c.report(d)
}

// settle refunds or charges the difference. It returns the window to which hits were refunded.
func (c *reserving) settle(h *held, difference int64) (window Micros) {
	switch {
	case difference < 0:
		c.refund(uint64(-difference), h.at)
		if c.limit.Algorithm == FixedWindow {
			return h.at
		}
	case difference > 0:
		var a ask
		var d Decision
		charged := *c.limit
		charged.CountRefused = true
		a.set(c.now, &Take{Cost: uint64(difference), Count: 1}, true)
		charged.take(c.counter, &a, &d)
	}
	return 0
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
