package shares

// plan sets the target of every holder.
func (b *Bucket) plan(now Micros) {
	b.cap = b.capacity(now)
	b.claims = b.claims[:0]
	weight := 0.0
	for _, h := range b.holders {
		c := b.claimOf(h, now)
		b.claims = append(b.claims, c)
		weight += c.Weight
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
	b.wanted, b.portion = 0, part
	for i, h := range b.holders {
		h.target = targets[i]
		switch {
		case h.state == gone:
		case b.Mode == Strict: // what is not needed stays in the store
			h.target = min(h.target, b.useful(h, part*h.Weight/weight, b.Limit.rate()*h.Weight/weight))
		case now < h.arriving: // it keeps what it used while others learn that it has moved
			h.target = max(h.target, min(h.used, b.cap*h.Weight/weight))
		}
		b.wanted += h.target
	}
	if b.Mode == Fast {
		b.fund()
	}
}

// claimOf returns the claim of h, which is nothing if its stream has ended. A client that has not shown a demand wants what it has.
func (b *Bucket) claimOf(h *holder, now Micros) Claim {
	if h.state == gone {
		return Claim{}
	}
	c := claimOf(h.demand.rate, h.Weight)
	if !h.demand.known && b.Mode == Fast {
		if c.Demand = h.share(now); c.Demand == 0 {
			c.Fresh = h.Weight
		}
	}
	return c
}

// fund shrinks the targets to what is paid for.
func (b *Bucket) fund() {
	if b.portion = b.wanted; b.funded < b.wanted {
		for _, h := range b.holders {
			h.target *= b.funded / b.wanted
		}
		b.portion = b.funded
	}
}

// useful returns what a holder can use in strict mode, where part and rate are its even share of what may be handed out and of the
// limit's rate. In a long window the first may be many times the second.
func (b *Bucket) useful(h *holder, part, rate float64) float64 {
	least := part
	if h.demand.known {
		least = min(part, rate)
	}
	return (1 + strictHeadroom) * max(h.demand.rate, leastClaim*least)
}
