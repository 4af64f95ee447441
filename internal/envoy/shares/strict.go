package shares

import (
	"math"
	"slices"
)

// reportDelay is the maximum age of a report on arrival for strict mode's guarantee.
const reportDelay = second

// fading is the minimum part of a demand that remains at the next report in strict mode. Strict mode reacts to a flood too slowly to help
// unless a part of the last one remains.
const fading = 0.7

// strictCapacity returns the rate that leases can cover: the burst of each holder, and its rate for as long as an assignment may be in
// force.
func (b *Bucket) strictCapacity(now Micros) float64 {
	horizon := usualTTL*second + b.Delivery
	clipped := horizon
	if b.ends > 0 {
		clipped = max(second, min(horizon*3/2, b.ends-now)) // so that renewals are paid for as well during the window
	}
	total, clients := b.left+b.paid, 0.0
	for i := range b.others {
		total += b.others[i].Reserved
	}
	for _, h := range b.holders {
		if h.state == streamEnded {
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

// burstSeconds returns the tokens that a holder may have, in seconds of its rate.
func (b *Bucket) burstSeconds() float64 {
	if b.Limit.Burst == 0 {
		return 1
	}
	return min(1, float64(b.Limit.Burst)/(2*b.Limit.rate()))
}

// carry sets the tokens of h at a time, given an upper bound. They do not exceed its burst plus its rate while a report is in transit;
// messages that lower and raise the burst may be in transit as well.
func (h *holder) carry(now Micros, most float64) {
	room := h.burst(now) + h.held(now)*seconds(reportDelay)
	if h.fell {
		room += h.raised
	}
	h.tokens = max(0, min(most, room))
}

// promised returns the hits that h may admit in this window and has not reported: all tokens that it may hold, and its rates since the
// last report for as long as they may be in force. Delivery includes the transit times of the report and of an assignment.
func (b *Bucket) promised(h *holder) float64 {
	if h.until() <= max(h.lastReport, b.start) {
		return 0
	}
	end := Micros(math.MaxInt64)
	if b.ends > 0 {
		end = b.ends
	}
	return h.tokens + h.hits(max(h.lastReport, b.start), end)
}

// promisedNext returns the hits that h may admit in the next window.
func (b *Bucket) promisedNext(h *holder) float64 {
	if b.ends == 0 || h.until() <= b.ends {
		return 0
	}
	next := *h
	next.carry(b.ends, h.tokens+h.hits(max(h.lastReport, b.start), b.ends))
	return next.tokens + h.hits(b.ends, math.MaxInt64)
}

// planned returns the hits that must be paid for so that every holder can have its target.
func (b *Bucket) planned(now Micros) (sum float64) {
	for _, h := range b.holders {
		sum += b.promised(h)
		if h.state != streamEnded {
			rate := h.target
			if share := h.share(now); rate >= (1-minMove)*share { // renewed unchanged
				rate = max(rate, share)
			}
			sum += max(0, b.price(h, rate, now).hits)
		}
	}
	return sum
}

// price is the increase of promised hits by an assignment.
type price struct{ hits, next float64 }

// add adds the positive parts of q.
func (p *price) add(q price) { p.hits, p.next = p.hits+max(0, q.hits), p.next+max(0, q.next) }

// part returns the part of p that is free.
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

// exceeds reports whether p exceeds the free hits.
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

// needStrict returns a question so that current and planned promises are paid for. It returns hits that clients can no longer use, unless
// failed replicas owe them.
func (b *Bucket) needStrict(now Micros) Request {
	planned := b.planned(now)
	b.burn = b.surplus(now) + b.owed
	if free := b.paid - planned; free >= 1 {
		dropped := min(free, b.burn)
		back := math.Floor(free - dropped)
		b.paid -= dropped + back
		b.burn -= dropped
		b.owed = max(0, b.owed-dropped)
		if back > 0 {
			return Request{Return: uint64(back)}
		}
	}
	return Request{Hits: uint64(math.Ceil(max(0, planned-b.paid) + b.burn))}
}

// surplus returns the hits to lease and drop in strict mode. A bucket in the store refills while leased hits wait to be used, so both
// together could exceed the burst; the excess is debited.
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
