package shares

import "math"

// Constants of the capacity, found by simulation.
const (
	payBack        = 10 * second // two report intervals: time over which surplus is handed out and debt paid back
	overdraw       = 0.9         // of the hits that can probably be debited: more would go unnoticed
	slowly         = 0.98        // of the rate: handed out while little is paid back
	maxUnwanted    = 2           // times the rate: maximum handed out from a large burst beyond the demand
	wantedHeadroom = 0.25        // beyond the demand: part handed out if that is more

	askAhead = 1.1 // times the interval between two questions: an answer takes a while

	// Maximum part of the rate for reported usage without an assignment, since clients may lie.
	strayPart = 2.0 / 3
)

// stray tracks reported usage without an assignment.
type stray struct {
	room float64 // hits that may still count
	rate float64 // counted hits per second of the last interval
	at   Micros
}

// take returns the number of hits that count, for a limit in hits per second.
func (s *stray) take(now Micros, limit, hits float64) float64 {
	s.pass(now, limit)
	hits = min(hits, s.room)
	s.room -= hits
	s.rate += hits / seconds(usualInterval)
	return hits
}

// pass moves s to a time.
func (s *stray) pass(now Micros, limit float64) {
	span := seconds(now - s.at)
	s.at = now
	s.room = min(s.room+strayPart*limit*span, strayPart*limit*seconds(usualInterval))
	s.rate *= max(0, 1-span/seconds(usualInterval))
}

// fastCapacity returns the rate, plus the surplus of the bucket spread over payBack. It keeps the cost of the next second of shares in
// the store, so that other callers find hits there. Overuse is paid back slowly; overuse beyond a second of the rate, as fast as surplus
// is handed out.
func (b *Bucket) fastCapacity(now Micros) float64 {
	rate, spare := b.Limit.rate(), b.spare(now)
	b.stray.pass(now, rate)
	c := rate + spare/seconds(payBack)
	c = min(c, max(maxUnwanted*rate, (1+wantedHeadroom)*b.wants())) // otherwise unused hits would be debited
	if spare < 0 {
		c = max(c, min(rate*slowly, c+rate/seconds(payBack)))
	}
	return max((1-strayPart)*rate, c-b.stray.rate)
}

// wants returns the known demand of all clients and RLS callers in hits per second.
func (b *Bucket) wants() float64 {
	sum := b.callers.rate
	for _, h := range b.holders {
		if h.state != streamEnded {
			sum += h.demand.rate
		}
	}
	for i := range b.others {
		sum += b.others[i].Demand
	}
	return sum
}

// spare returns the hits left beyond those kept in the store.
func (b *Bucket) spare(now Micros) float64 {
	rate, burst := b.Limit.rate(), float64(b.Limit.Burst)
	left, uses := b.left, b.wanted
	if b.Limit.Overdraft {
		left = min(burst, left+rate*seconds(now-b.at))
	}
	for i := range b.others {
		left, uses = left+b.others[i].Paid, uses+b.others[i].Held
	}
	return left + b.paid - min(burst, uses*b.ahead())/2
}

// leavers are clients of any replica whose streams have ended but which may still use their shares.
type leavers struct {
	rate   float64 // hits per second that they may use
	weight float64
	taken  float64 // weight of clients that recently came from another replica, and may be among them
	mine   float64 // part of taken that came to this replica
}

// part returns the part of the leavers that does not report elsewhere yet.
func (l *leavers) part() float64 {
	if l.weight <= l.taken {
		return 0
	}
	return 1 - l.taken/l.weight
}

// leavers returns the leavers of all replicas.
func (b *Bucket) leavers(now Micros) (l leavers) {
	for _, h := range b.holders {
		switch {
		case h.state == streamEnded:
			l.rate += h.held(now)
			l.weight += h.Weight
		case now < h.arriving:
			l.mine += h.Weight
		}
	}
	l.taken = l.mine
	for i := range b.others {
		r := &b.others[i]
		l.rate, l.weight, l.taken = l.rate+r.Ended, l.weight+r.EndedWeight, l.taken+r.Taken
	}
	return l
}

// endArrivals ends the arrival of holders that cannot be among the remaining leavers.
func (b *Bucket) endArrivals(now Micros) {
	l := b.leavers(now)
	for _, h := range b.holders {
		if h.state != streamEnded && now < h.arriving && h.arriving < now+handover-dead && l.taken > l.weight {
			l.taken -= h.Weight
			h.arriving = now
		}
	}
}

// accrue pays for the share of h until now.
func (b *Bucket) accrue(h *holder, now Micros) {
	hits := h.held(now) * seconds(now-h.accrued)
	h.accrued = now
	if b.Mode == Strict || b.failed != 0 {
		return
	}
	if h.state == streamEnded {
		hits *= b.gone.part()
	}
	h.escrow += hits
	b.escrow += hits
	b.returns += hits
	b.paid -= hits
}

// inheritFast pays until now for the shares that clients of failed replicas may use.
func (b *Bucket) inheritFast(now Micros) {
	b.paid -= b.legacy * b.gone.part() * seconds(now-b.inherited)
	b.inherited = now
}

// returning returns the maximum of paid, unreported hits of h that may come back.
func (b *Bucket) returning(h *holder) float64 {
	if b.escrow <= 0 {
		return 0
	}
	return b.returns * h.escrow / b.escrow
}

// settleFast replaces the paid hits of h since its last report by the reported ones. Nothing comes back if reports are missing, nor do
// tokens that h may still have.
func (b *Bucket) settleFast(h *holder, now Micros, allowed float64, complete, saturated bool) {
	back, unused, tokens := b.returning(h), h.escrow-allowed, 0.0
	if !saturated {
		tokens = min(max(0, unused), h.burst(now))
	}
	switch {
	case unused < 0 && h.unpaid:
	case unused < 0: // a message was late
		b.paid += unused
	case complete: // if it is unpaid, a part was used before, so less comes back
		b.paid += min(unused-tokens, back)
	}
	b.returns, b.escrow = max(0, b.returns-back), max(0, b.escrow-h.escrow+tokens)
	h.escrow = tokens
	h.unpaid = h.unpaid && b.failed != 0
}

// payTokens pays for the tokens that h gains by a change of its burst. A client keeps the ratio of its tokens to the burst.
func (b *Bucket) payTokens(h *holder, before, burst float64) {
	more := burst - before
	if before > 0 {
		more *= min(1, h.escrow/before)
	}
	if more > 0 && b.failed == 0 {
		h.escrow, b.escrow, b.paid = h.escrow+more, b.escrow+more, b.paid-more
	}
}

// needFast returns a question so that the next second of all shares is paid for. It returns excess hits.
func (b *Bucket) needFast(now Micros) Request {
	uses, tokens := b.legacy*b.gone.part(), 0.0
	for _, h := range b.holders {
		switch h.state {
		case waiting, denied:
			tokens += h.target * b.burstSeconds()
		case assigned:
			uses += h.held(now)
		case streamEnded:
		}
	}
	hits := max(uses, b.wanted)*b.ahead() + tokens - b.paid
	if hits < 0 {
		if !b.Limit.Overdraft {
			return Request{}
		}
		back := max(0, math.Floor(-hits-b.wanted))
		b.paid -= back
		return Request{Return: uint64(back)}
	}
	if b.Limit.Overdraft {
		hits = min(hits, overdraw*(float64(b.Limit.Burst)+b.leaves(now)))
	}
	return Request{Hits: uint64(math.Ceil(max(0, hits)))}
}

// leaves returns the hits probably left in the store. Other replicas pay for their shares, and RLS callers take available hits.
func (b *Bucket) leaves(now Micros) float64 {
	span, others, calls := seconds(now-b.at), 0.0, b.callers.rate
	for i := range b.others {
		others += b.others[i].Held
		calls += b.others[i].Calls
	}
	left := b.left + (b.Limit.rate()-others)*span
	return min(left, max(0, left-calls*span))
}

// ahead returns the number of seconds of all shares to pay for: until the next answer.
func (b *Bucket) ahead() float64 { return askAhead * seconds(b.interval()) }

// receiveFast updates paid and returns after an answer. A full bucket loses its inflow, so the paid and returnable hits of all replicas
// must not exceed the space left in the store.
func (b *Bucket) receiveFast(granted float64) {
	b.paid += granted
	if !b.Limit.Overdraft && b.Limit.Window > payBack { // a shorter window soon pays for the difference
		b.funded = max(0, b.paid) / b.ahead()
	}
	lacks, paid, returns := max(0, float64(b.Limit.Burst)-b.left), max(0, b.paid), b.returns
	for i := range b.others {
		paid, returns = paid+max(0, b.others[i].Paid), returns+b.others[i].Returns
	}
	if paid > lacks && b.paid > 0 {
		b.paid *= lacks / paid
	}
	if lacks = max(0, lacks-paid); returns > lacks {
		b.returns *= lacks / returns
	}
}
