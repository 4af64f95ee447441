package shares

import "math"

// apply sends the shares that follow from the targets.
func (b *Bucket) apply(now Micros) {
	if b.Mode == Strict {
		b.admit(now)
		b.spend(now)
		return
	}
	sum := 0.0
	for _, h := range b.holders {
		if h.state == assigned {
			sum += h.share(now)
		}
	}
	tight, least := sum > tolerance*b.portion, minMove
	if sum*tolerance < b.portion {
		least = minJump
	}
	for _, h := range b.holders {
		switch share := h.share(now); {
		case h.state == streamEnded:
		case h.target < 1.0/hour: // below the smallest possible share
			if h.state != denied || h.assignedAt < h.lastReport {
				b.reject(h, now)
			}
		case h.state != assigned, h.worth(least, now), tight && h.target < share:
			b.assign(h, h.target, now)
		case h.assignedAt < h.lastReport:
			b.assign(h, share, now)
		}
	}
}

// worth reports whether moving h to its target is worth a message now: the change exceeds the given part of its share, and the last
// change was long enough ago.
func (h *holder) worth(least float64, now Micros) bool {
	share := h.share(now)
	apart := max(each, Micros(float64(second)/max(share, h.target, 1.0/hour)))
	return math.Abs(h.target-share) > least*share && now-h.moved >= apart
}

// renew repeats the assignment of each holder that has reported since the last one.
func (b *Bucket) renew(now Micros) {
	for _, h := range b.holders {
		if h.state == assigned && h.assignedAt < h.lastReport {
			b.assign(h, h.share(now), now)
		}
	}
}

// spend renews and raises shares in strict mode, as far as they are paid for, renewals first. A share shrinks when it is renewed, because
// the old rate is paid for until it expires.
func (b *Bucket) spend(now Micros) {
	free := b.free()
	var renewing, growing price
	for _, h := range b.holders {
		if rate, ok := h.due(now); ok {
			all, kept := b.price(h, rate, now), price{}
			if h.assignedAt < h.lastReport {
				kept = b.price(h, min(rate, h.share(now)), now)
			}
			renewing.add(kept)
			growing.add(price{all.hits - kept.hits, all.next - kept.next})
		}
	}
	renew := renewing.part(free)
	grow := growing.part(price{free.hits - renewing.hits, free.next - renewing.next})
	for _, h := range b.holders {
		rate, ok := h.due(now)
		share := h.share(now)
		if rate = min(rate, share+grow*max(0, rate-share)); grow < 1 && rate <= (1+minMove)*share {
			rate = min(rate, share)
		}
		switch reported := h.assignedAt < h.lastReport; {
		case !ok, rate == share && !reported:
			continue
		case rate <= share && renew < 1:
			if h.until()-now > h.interval+h.interval/2+b.Delivery { // it can wait until hits become free
				continue
			}
			if b.failed == 0 {
				rate *= renew
			}
		}
		b.buy(h, rate, &free, now)
	}
}

// due returns the rate to send to h. ok is false if none is due.
func (h *holder) due(now Micros) (rate float64, ok bool) {
	if h.state != assigned {
		return 0, false
	}
	share, reported := h.share(now), h.assignedAt < h.lastReport
	switch {
	case h.target > share && h.worth(minMove, now) && (reported || now-h.moved >= h.interval/2),
		h.target < (1-minMove)*share && reported:
		return h.target, true
	}
	return share, reported
}

// buy assigns a rate to h if it is paid for. Otherwise it assigns the smallest rate; if that is not paid for either, it sends a denial
// before the assignments of h expire. While the store does not answer it never assigns the smallest rate, because nothing could raise it
// again.
func (b *Bucket) buy(h *holder, rate float64, free *price, now Micros) {
	rates := []float64{rate, 0}
	if b.failed != 0 {
		rates = rates[:1]
	}
	for _, r := range rates {
		if p := b.price(h, r, now); !p.exceeds(*free) {
			free.hits, free.next = free.hits-p.hits, free.next-p.next
			b.assign(h, r, now)
			return
		}
	}
	if h.state != denied || h.assignedAt < h.lastReport {
		b.reject(h, now)
	}
}

// admit answers waiting holders in strict mode, with the smallest possible rate, or a denial if that cannot be paid for. Holders that
// joined after the question wait for the next one.
func (b *Bucket) admit(now Micros) {
	free := b.free()
	for _, h := range b.holders {
		if h.state != waiting && h.state != denied || h.state == waiting && h.lastReport >= b.requestedAt && b.failed == 0 {
			continue
		}
		if b.buy(h, 0, &free, now); h.state == assigned {
			h.moved = now - h.interval
		}
	}
}

// free returns the hits of this window that are paid for but not promised, and the hits of the next window that are not promised.
func (b *Bucket) free() price {
	p := price{hits: b.paid, next: float64(b.Limit.Hits)}
	if len(b.others) > 0 {
		p.next *= min(1, b.want/max(b.cap, 1.0/hour))
	}
	for _, h := range b.holders {
		p.hits -= b.promised(h)
		p.next -= b.promisedNext(h)
	}
	return p
}

// draft returns the assignment of a rate to h, and the usage that it permits.
func (b *Bucket) draft(h *holder, rate float64, now Micros) (Assignment, use) {
	a, u := tokenBucket(rate, b.burstSeconds())
	a.TTL = b.ttl(h)
	u.since, u.until = now, now+Micros(a.TTL)*second
	if b.Mode == Strict {
		u.until += b.Delivery
	}
	return a, u
}

// ttl returns the TTL of an assignment of h in seconds: three of its intervals.
func (b *Bucket) ttl(h *holder) uint32 {
	return max(minTTL, uint32((3*h.interval+second/2)/second)) + b.Spread
}

// take makes u the usage permitted to h from now on.
func (b *Bucket) take(h *holder, u use, now Micros) {
	old := 0.0
	if n := len(h.sent); n > 0 && h.state == assigned {
		old = h.sent[n-1].burst
	}
	h.tokens += max(0, u.burst-old)
	h.raised += max(0, u.burst-old)
	h.fell = h.fell || u.burst < old
	arrives := never
	if b.Mode == Fast {
		b.payTokens(h, old, u.burst)
		if h.reachable(now) {
			arrives = now + arrival
		}
	}
	h.send(u, arrives)
	h.state = assigned
}

// assign sends a rate to h.
func (b *Bucket) assign(h *holder, rate float64, now Micros) {
	before := h.share(now)
	a, u := b.draft(h, rate, now)
	b.take(h, u, now)
	if u.rate != before {
		h.moved = now
	}
	b.tell(h, now, a)
}

// tell queues an assignment for h. It replaces one that is already queued in this round.
func (b *Bucket) tell(h *holder, now Micros, a Assignment) {
	h.assignedAt = now
	if h.round != b.round {
		h.round, h.queued = b.round, len(b.actions)
		b.actions = append(b.actions, Action{})
	}
	b.actions[h.queued] = Action{h.ID, h.Tag, a} // its stream may have changed
}

// stop rejects all assigned holders: their assignments were paid for in the last window, and cannot be paid for in this one.
func (b *Bucket) stop(now Micros) {
	for _, h := range b.holders {
		if h.state == assigned {
			b.reject(h, now)
		}
	}
}

// reject makes h reject everything or, if the store does not answer, apply the fallback.
func (b *Bucket) reject(h *holder, now Micros) {
	h.state = denied
	a := Assignment{Kind: DenyAll, TTL: b.ttl(h)}
	switch {
	case b.failed == 0, b.fallback == Deny, b.fallback == Keep:
	case b.fallback == Allow:
		a.Kind = AllowAll
	default: // Lapse
		return
	}
	if b.Mode == Fast && h.reachable(now) {
		h.end(now + arrival)
	}
	b.tell(h, now, a)
}
