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
	tight, least := sum > tolerance*b.portion, leastMove
	if sum*tolerance < b.portion {
		least = leastJump
	}
	for _, h := range b.holders {
		switch share := h.share(now); {
		case h.state == gone:
		case h.target < 1.0/hour: // which is the least share there is
			if h.state != denied || h.told < h.heard {
				b.reject(h, now)
			}
		case h.state != assigned, h.worth(least, now), tight && h.target < share:
			b.assign(h, h.target, now)
		case h.told < h.heard:
			b.assign(h, share, now)
		}
	}
}

// worth reports whether a move of h to its target, by at least a part of its share, is worth a change now.
func (h *holder) worth(least float64, now Micros) bool {
	share := h.share(now)
	apart := max(each, Micros(float64(second)/max(share, h.target, 1.0/hour)))
	return math.Abs(h.target-share) > least*share && now-h.moved >= apart
}

// renew sends the same assignment again to each holder that has reported since the last one.
func (b *Bucket) renew(now Micros) {
	for _, h := range b.holders {
		if h.state == assigned && h.told < h.heard {
			b.assign(h, h.share(now), now)
		}
	}
}

// spend renews and raises shares in strict mode, as far as that is paid for, renewals first. A share that shrinks does so when it is
// renewed, since what it had is paid for until it runs out.
func (b *Bucket) spend(now Micros) {
	free := b.free()
	var renewing, growing price
	for _, h := range b.holders {
		if rate, ok := h.due(now); ok {
			all, kept := b.price(h, rate, now), price{}
			if h.told < h.heard {
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
		if rate = min(rate, share+grow*max(0, rate-share)); grow < 1 && rate <= (1+leastMove)*share {
			rate = min(rate, share)
		}
		switch reported := h.told < h.heard; {
		case !ok, rate == share && !reported:
			continue
		case rate <= share && renew < 1:
			if h.until()-now > h.interval+h.interval/2+b.Delivery { // it can wait for hits to come free
				continue
			}
			if b.failed == 0 {
				rate *= renew
			}
		}
		b.buy(h, rate, &free, now)
	}
}

// due returns the rate that h is to be sent, if it is to be sent one.
func (h *holder) due(now Micros) (rate float64, ok bool) {
	if h.state != assigned {
		return 0, false
	}
	share, reported := h.share(now), h.told < h.heard
	switch {
	case h.target > share && h.worth(leastMove, now) && (reported || now-h.moved >= h.interval/2),
		h.target < (1-leastMove)*share && reported:
		return h.target, true
	}
	return share, reported
}

// buy assigns a rate to h if it is paid for, or else the least one, or else denies before what h has runs out. While the store does not
// answer, nothing comes that could raise the least one again.
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
	if h.state != denied || h.told < h.heard {
		b.reject(h, now)
	}
}

// admit answers those that wait for an assignment in strict mode, with the least one there is, or denies if that cannot be paid for.
// Those that came after the question wait for the next one.
func (b *Bucket) admit(now Micros) {
	free := b.free()
	for _, h := range b.holders {
		if h.state != waiting && h.state != denied || h.state == waiting && h.heard >= b.asked && b.failed == 0 {
			continue
		}
		if b.buy(h, 0, &free, now); h.state == assigned {
			h.moved = now - h.interval
		}
	}
}

// free returns the hits that are paid for and not promised, in this window, and the hits of the next window that are not
// promised.
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

// draft returns the assignment of a rate to h, and what it may be used for.
func (b *Bucket) draft(h *holder, rate float64, now Micros) (Assignment, use) {
	a, u := tokenBucket(rate, b.burstSeconds())
	a.TTL = b.ttl(h)
	u.since, u.until = now, now+Micros(a.TTL)*second
	if b.Mode == Strict {
		u.until += b.Delivery
	}
	return a, u
}

// ttl returns the seconds that an assignment of h lasts: three of its intervals.
func (b *Bucket) ttl(h *holder) uint32 {
	return max(leastTTL, uint32((3*h.interval+second/2)/second)) + b.Spread
}

// take makes u what h may use, from now on.
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

// assign gives h a rate.
func (b *Bucket) assign(h *holder, rate float64, now Micros) {
	before := h.share(now)
	a, u := b.draft(h, rate, now)
	b.take(h, u, now)
	if u.rate != before {
		h.moved = now
	}
	b.tell(h, now, a)
}

// tell tells h what to do. Of several assignments at one time it is told the last.
func (b *Bucket) tell(h *holder, now Micros, a Assignment) {
	h.told = now
	if h.round != b.round {
		h.round, h.queued = b.round, len(b.actions)
		b.actions = append(b.actions, Action{})
	}
	b.actions[h.queued] = Action{h.ID, h.Tag, a} // its stream may be another one than before
}

// stop rejects what all holders were assigned: it was paid for in the last window, and cannot be in this one.
func (b *Bucket) stop(now Micros) {
	for _, h := range b.holders {
		if h.state == assigned {
			b.reject(h, now)
		}
	}
}

// reject makes h reject everything, or do what the fallback says if the store does not answer.
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
