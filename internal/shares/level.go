package shares

// Constants of the level, found by simulation.
const (
	leastOfRate = 0.3         // of the limit's rate: what is handed out at least while a bucket pays back
	maxOverdue  = 2.0         // seconds of the limit's rate that the store may owe; nothing is handed out beyond them
	payBack     = 10 * second // two intervals of reports: how fast what is left of a level is handed out
)

// capacity returns the hits a second that may be handed out by all replicas together, as it follows from one level: the
// hits that are left in the store and those that were leased from it.
func (b *Bucket) capacity(now Micros) float64 {
	switch {
	case b.Mode == Strict:
		return max(0, b.strictCapacity(now))
	case b.Limit.Burst == 0:
		return max(0, b.windowCapacity(now))
	}
	rate := b.Limit.rate()
	left := min(float64(b.Limit.Burst), b.left+rate*seconds(now-b.at))
	c := rate + (left+b.paid-b.reserved(now))/seconds(payBack)
	overdue := max(0, -b.left-b.paid) / rate
	return max(leastOfRate*rate, c) * max(0, 1-overdue/maxOverdue)
}

// windowCapacity spends what is left of a window within payBack, or by its end.
func (b *Bucket) windowCapacity(now Micros) float64 {
	horizon := payBack
	if b.ends > 0 {
		horizon = max(second, min(horizon, b.ends-now))
	}
	spread := (b.left + b.paid - b.reserved(now)) / seconds(horizon)
	return min(spread, float64(b.Limit.Hits)/seconds(payBack)) // assignments last into the next window
}

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

// reserved returns the tokens that holders of all replicas may hold.
func (b *Bucket) reserved(now Micros) (sum float64) {
	for _, h := range b.holders {
		sum += h.burst(now)
	}
	for i := range b.others {
		sum += b.others[i].Reserved
	}
	return sum
}

// burstSeconds returns how many seconds of its rate a holder may have as tokens.
func (b *Bucket) burstSeconds() float64 {
	if b.Limit.Burst == 0 {
		return 1
	}
	return min(1, float64(b.Limit.Burst)/(2*b.Limit.rate()))
}
