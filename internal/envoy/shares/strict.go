package shares

import (
	"math"
	"slices"
)

// reportDelay is how old a report may be when it arrives, so that strict mode holds.
const reportDelay = second

// fading is the part of a demand that is left at the next report at least, in strict mode, which follows a flood too slowly to be of use
// to it unless something is left of the last one.
const fading = 0.7

// strictCapacity hands out as much as leases can cover: the burst of each holder, and its rate for as long as an
// assignment may be in force.
func (b *Bucket) strictCapacity(now Micros) float64 {
	horizon := usualTTL*second + b.Delivery
	clipped := horizon
	if b.ends > 0 {
		clipped = max(second, min(horizon*3/2, b.ends-now)) // so that renewals are paid for as well, while the window lasts
	}
	total, clients := b.left+b.paid, 0.0
	for i := range b.others {
		total += b.others[i].Reserved
	}
	for _, h := range b.holders {
		if h.state == gone {
			total -= b.promised(h)
		} else {
			clients++
		}
	}
	c := (total - clients) / (seconds(clipped) + b.burstSeconds())
	if b.Limit.Burst == 0 {
		c = min(c, (float64(b.Limit.Hits)-clients)/(seconds(horizon)+b.burstSeconds()))
	}
	return c
}

// burstSeconds returns how many seconds of its rate a holder may have as tokens.
func (b *Bucket) burstSeconds() float64 {
	if b.Limit.Burst == 0 {
		return 1
	}
	return min(1, float64(b.Limit.Burst)/(2*b.Limit.rate()))
}

// carry sets the tokens of h at a time at which it has at most so many. It has no more than its burst, and what it is given
// while a report is under way; messages that lower and raise the burst may be under way as well.
func (h *holder) carry(now Micros, most float64) {
	room := h.burst(now) + h.held(now)*seconds(reportDelay)
	if h.fell {
		room += h.raised
	}
	h.tokens = max(0, min(most, room))
}

// promised returns the hits that h may admit in this window and has not reported: all tokens that it may hold, and its
// rates from the last report on for as long as they may be in force. That a report took a while to arrive, and an
// assignment too, is within Delivery.
func (b *Bucket) promised(h *holder) float64 {
	if h.until() <= max(h.heard, b.start) {
		return 0
	}
	end := Micros(math.MaxInt64)
	if b.ends > 0 {
		end = b.ends
	}
	return h.tokens + h.hits(max(h.heard, b.start), end)
}

// promisedNext returns the hits that h may admit in the next window.
func (b *Bucket) promisedNext(h *holder) float64 {
	if b.ends == 0 || h.until() <= b.ends {
		return 0
	}
	next := *h
	next.carry(b.ends, h.tokens+h.hits(max(h.heard, b.start), b.ends))
	return next.tokens + h.hits(b.ends, math.MaxInt64)
}

// planned returns the hits that must be paid for so that every holder can have its target.
func (b *Bucket) planned(now Micros) (sum float64) {
	for _, h := range b.holders {
		sum += b.promised(h)
		if h.state != gone {
			rate := h.target
			if share := h.share(now); rate >= (1-leastMove)*share { // it is renewed as it is
				rate = max(rate, share)
			}
			sum += max(0, b.price(h, rate, now).hits)
		}
	}
	return sum
}

// price is what an assignment adds to what is promised.
type price struct{ hits, next float64 }

// add adds what q adds, if it does.
func (p *price) add(q price) { p.hits, p.next = p.hits+max(0, q.hits), p.next+max(0, q.next) }

// part returns which part of p is free.
func (p *price) part(free price) float64 {
	part := 1.0
	if p.hits > max(0, free.hits) {
		part = max(0, free.hits) / p.hits
	}
	if p.next > max(0, free.next) {
		part = min(part, max(0, free.next)/p.next)
	}
	return part
}

// exceeds reports whether p adds more than is free.
func (p price) exceeds(free price) bool {
	return p.hits > max(0, free.hits) || p.next > max(0, free.next)
}

// price returns the price of sending a rate to h.
func (b *Bucket) price(h *holder, rate float64, now Micros) price {
	after := *h
	after.sent = slices.Clone(h.sent)
	_, u := b.draft(h, rate, now)
	b.take(&after, u, now)
	return price{b.promised(&after) - b.promised(h), b.promisedNext(&after) - b.promisedNext(h)}
}

// needStrict returns what to ask for, so that what is promised is paid for, and what is to be promised. What clients can no longer use
// goes back, unless others have a claim to it.
func (b *Bucket) needStrict(now Micros) Ask {
	planned := b.planned(now)
	b.burn = b.surplus(now) + b.owed
	if free := b.paid - planned; free >= 1 {
		dropped := min(free, b.burn)
		back := math.Floor(free - dropped)
		b.paid -= dropped + back
		b.burn -= dropped
		b.owed = max(0, b.owed-dropped)
		if back > 0 {
			return Ask{Return: uint64(back)}
		}
	}
	return Ask{Hits: uint64(math.Ceil(max(0, planned-b.paid) + b.burn))}
}

// surplus returns the hits to lease and drop, in strict mode. A bucket in the store refills while hits that were leased
// from it wait to be used, so both together could exceed the burst; what would, is debited.
func (b *Bucket) surplus(now Micros) float64 {
	if b.Limit.Burst == 0 || b.at == 0 {
		return 0
	}
	waiting := b.paid
	for i := range b.others {
		waiting += b.others[i].Reserved
	}
	burst, rate := float64(b.Limit.Burst), b.Limit.rate()
	level := min(burst, b.left+rate*seconds(now-b.at)) + rate*askAhead
	if waiting <= 0 {
		return 0
	}
	return max(0, level+waiting-burst) * max(0, b.paid) / waiting
}
