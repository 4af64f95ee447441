package shares

// plan sets the target of every holder.
func (b *Bucket) plan(now Micros) {
	weight := 0.0
	for _, h := range b.holders {
		if h.state != gone {
			weight += h.Weight
		}
	}
	b.cap = b.capacity(now)
	b.claims = b.claims[:0]
	for _, h := range b.holders {
		if h.state == gone {
			continue
		}
		c := claimOf(h.demand.rate, h.Weight)
		if !h.demand.known && b.Mode == Fast { // it wants what it has
			if c.Demand = h.share(now); c.Demand == 0 {
				c.Fresh = h.Weight
			}
		}
		b.claims = append(b.claims, c)
	}
	if b.callers.rate > leastJump*b.cap { // RLS callers claim as one client does
		b.claims = append(b.claims, claimOf(b.callers.rate, 1))
	}
	part := b.part(b.claims)
	targets, level := divide(part, b.claims)
	if len(b.others) == 0 {
		b.level = level
	}
	round(targets)
	wanted, i := 0.0, 0
	for _, h := range b.holders {
		if h.state == gone {
			continue
		}
		h.target = targets[i]
		switch {
		case b.Mode == Strict: // what is not needed stays in the store
			h.target = min(h.target, b.useful(h, part*h.Weight/weight, b.Limit.rate()*h.Weight/weight))
		case now < h.settles:
			h.target = max(h.target, h.settling(b.cap, weight))
		}
		wanted += h.target
		i++
	}
	b.wanted, b.portion = wanted, part
	if b.Mode == Strict {
		return
	}
	if b.portion = wanted; b.funded < wanted { // shrink to what is paid for
		for _, h := range b.holders {
			h.target *= b.funded / wanted
		}
		b.portion = b.funded
	}
}

// settling returns the rate that h keeps while others learn that it has moved, at most its part of what there is.
func (h *holder) settling(rate, weight float64) float64 { return min(h.used, rate*h.Weight/weight) }

// useful returns what a holder can use in strict mode, where part and rate are its even share of what may be handed out and of the
// limit's rate. In a long window the first may be many times the second.
func (b *Bucket) useful(h *holder, part, rate float64) float64 {
	least := part
	if h.demand.known {
		least = min(part, rate)
	}
	return (1 + strictHeadroom) * max(h.demand.rate, leastClaim*least)
}
