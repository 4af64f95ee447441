package shares

import "math"

// Report processes a client's report. The first report makes it a holder.
func (b *Bucket) Report(at Micros, c Client, u Usage) {
	now := b.advance(at)
	h := b.byID[c.ID]
	if h == nil {
		b.join(now, c, u)
		return
	}
	h.Client = c
	gap := now - h.lastReport
	most := h.interval + h.interval/2
	if b.Mode == Strict {
		most = h.interval + reportDelay
	}
	complete := h.state != streamEnded && gap <= most
	b.accrue(h, now)
	b.settle(h, now, b.plausible(h, u.Allowed, now), complete, saturated(u))
	if h.state == streamEnded {
		h.ticking = false
	}
	if h.state == streamEnded || h.state == assigned && h.until() <= now {
		h.state, h.released = waiting, false
		b.soon(now)
	}
	span := seconds(gap)
	if !complete {
		span = u.span()
	}
	if span > seconds(coalesce) {
		b.observe(h, u, span)
		if b.jumps > minJump*b.portion {
			b.soon(now)
		}
	}
	if h.ticking { // the first report after the one that opens a stream comes early
		h.interval += (min(gap, 2*h.interval) - h.interval) / 4
	}
	if u.Busy() {
		h.active = now
	}
	h.lastReport, h.ticking = now, true
	b.due = min(b.due, now+each)
}

// observe updates the demand of h with a report over span seconds.
func (b *Bucket) observe(h *holder, u Usage, span float64) {
	before, jump := h.demand.rate, false
	x := float64(u.Allowed+u.Denied) / span
	if b.Mode == Strict { // a flood may recur
		x = max(x, fading*h.demand.rate)
	}
	h.demand, jump = h.demand.observe(x, span)
	if jump {
		b.jumps += math.Abs(h.demand.rate - before)
	}
}

// join makes a client a holder. A client that reports an elapsed time comes from another replica, or from before a restart of this one,
// which has paid for its usage. It keeps its previous rate until other replicas know that it has moved.
func (b *Bucket) join(now Micros, c Client, u Usage) {
	h := &holder{Client: c, interval: usualInterval, lastReport: now, active: now, accrued: now, moved: now - each}
	if span := u.span(); span > 0 {
		b.observe(h, u, span)
		h.used, h.arriving = float64(u.Allowed)/span, now+handover+nextRow
	} else {
		b.paid -= b.stray.take(now, b.Limit.rate(), float64(u.Allowed))
	}
	if len(b.holders) == 0 {
		b.paused = 0
	}
	b.holders = append(b.holders, h)
	b.byID[c.ID] = h
	b.soon(now)
}

// plausible returns the number of reported hits that count, so that a lying client takes little from the others. For a client with an
// uninterrupted assignment, the maximum is that of the assignment or, in fast mode, twice that, since messages may be late.
func (b *Bucket) plausible(h *holder, allowed uint64, now Micros) float64 {
	hits, most := float64(allowed), h.tokens+h.hits(max(h.lastReport, b.start), now)
	paid := most
	if b.Mode == Fast {
		paid, most = h.escrow, 2*(h.burst(h.lastReport)+h.hits(h.lastReport, now))
	}
	if h.unpaid || h.ticking && h.state == assigned && h.until() > now {
		return min(hits, most)
	}
	return min(hits, paid) + b.stray.take(now, b.Limit.rate(), max(0, hits-paid))
}

// pardon limits the next report of each client to the hits that were paid for.
func (b *Bucket) pardon() {
	for _, h := range b.holders {
		h.unpaid = true
	}
}
