package shares

// plan sets the target of every holder.
func (b *Bucket) plan(now Micros) {
	b.cap = b.capacity(now)
	b.claims = b.claims[:0]
	weight, even := 0.0, b.even()
	for _, h := range b.holders {
		c := b.claimOf(h, even*h.Weight, now)
		b.claims = append(b.claims, c)
		weight += c.Weight
	}
	if b.callers.rate > minJump*b.cap { // RLS callers claim like one client
		b.claims = append(b.claims, claimOf(b.callers.rate, 1))
	}
	part := b.part(b.claims)
	targets, level := divide(part, b.claims)
	if len(b.others) == 0 {
		b.level = level
	}
	round(targets)
	b.wanted, b.portion = 0, part
	for i, h := range b.holders {
		h.target = targets[i]
		switch {
		case h.state == streamEnded:
		case b.Mode == Strict: // hits that are not needed stay in the store
			h.target = min(h.target, b.useful(h, part*h.Weight/weight, b.Limit.rate()*h.Weight/weight))
		case now < h.arriving: // it keeps its previous rate until other replicas know that it has moved
			h.target = max(h.target, min(h.used, b.cap*h.Weight/weight))
		}
		b.wanted += h.target
	}
	if b.Mode == Fast {
		b.fund()
	}
}

// even returns an even share of the capacity for the weight 1.
func (b *Bucket) even() float64 {
	weight := 0.0
	for _, h := range b.holders {
		if h.state != streamEnded {
			weight += h.Weight
		}
	}
	for i := range b.others {
		weight += b.others[i].Weight
	}
	return b.cap / max(weight, 1)
}

// claimOf returns the claim of h, which is zero if its stream has ended. A client without a known demand claims its current share, up to
// an even one.
func (b *Bucket) claimOf(h *holder, even float64, now Micros) Claim {
	if h.state == streamEnded {
		return Claim{}
	}
	c := claimOf(h.demand.rate, h.Weight)
	if !h.demand.known && b.Mode == Fast {
		if c.Demand = min(h.share(now), even); c.Demand == 0 {
			c.Fresh = h.Weight
		}
	}
	return c
}

// fund reduces the targets to the rate that is paid for.
func (b *Bucket) fund() {
	if b.portion = b.wanted; b.funded < b.wanted {
		for _, h := range b.holders {
			h.target *= b.funded / b.wanted
		}
		b.portion = b.funded
	}
}

// useful returns the rate that a holder can use in strict mode. part and rate are its even shares of the handed-out rate and of the
// limit's rate. In a long window, the first may be many times the second.
func (b *Bucket) useful(h *holder, part, rate float64) float64 {
	least := part
	if h.demand.known {
		least = min(part, rate)
	}
	return (1 + strictHeadroom) * max(h.demand.rate, minClaim*least)
}
