package engine

// A token bucket holds up to Burst tokens and refills at the limit's rate; a hit takes one token. In any time t it admits at most Burst +
// rate·t hits, plus Debt if the balance may be negative.

// balance returns the tokens in the bucket, rounded down and up. They are negative while the bucket is in debt.
func (v *bucketView) balance(l *Limit) (down, up int64) {
	up = int64(l.Burst) - int64(v.spent.n)
	if v.spent.part > 0 {
		return up - 1, up
	}
	return up, up
}

// tokens returns the number of takes of a that the bucket admits.
func (v *bucketView) tokens(l *Limit, a *ask) uint64 {
	if l.Hits == 0 {
		return 0
	}
	down, up := v.balance(l)
	if l.Debt == 0 {
		return a.fit(uint64(max(down, 0)))
	}
	if a.probe {
		return a.fit(uint64(max(up, 0)))
	}
	// The i-th take, counting from 0, is admitted while balance − i·cost > 0 and balance − (i+1)·cost ≥ −Debt.
	missing := (uint64(max(up, 0)) + a.cost - 1) / a.cost
	return min(missing, a.fit(uint64(max(down+int64(l.Debt), 0))))
}

// takeTokens implements take for a token bucket.
func (l *Limit) takeTokens(s *State, a *ask, d *Decision) (rejects bool) {
	if l.Hits == 0 {
		return true
	}
	var v bucketView
	v.set(l, s, a.now)
	d.Admitted, rejects = a.judge(v.tokens(l, a))
	down, _ := v.balance(l)
	switch {
	case v.spend(l, a.spends(d.Admitted, l.CountRefused)) || a.starts && !v.seen && l.startsLow():
		v.write(l, s)
	case a.write && v.moved:
		v.move(s)
	}
	d.Left, d.ResetAfter = uint64(max(down, 0)), until(v.full(l), a.now)
	if rejects {
		d.RetryAfter = until(v.retry(l, a.cost), a.now)
	}
	return rejects
}

// spend takes hits out of the bucket and reports whether it took any. Only rejected hits that count can exceed the available tokens; they
// lower the balance to at least −Burst.
func (v *bucketView) spend(l *Limit, hits uint64) bool {
	most := l.most()
	if hits == 0 || v.spent.n >= most {
		return false
	}
	if v.spent.n += min(hits, most); v.spent.n >= most {
		v.spent = amount{n: most}
	}
	return true
}

// retry returns the time at which cost would be admitted.
func (v *bucketView) retry(l *Limit, cost uint64) Micros {
	at := v.back(l, v.sub(v.spent, amount{n: l.Burst + l.Debt - cost}))
	if l.Debt > 0 { // the balance must first rise above 0
		at = max(at, v.below(l, l.Burst))
	}
	return v.atMost(at)
}

// giveTokens puts hits back until the bucket is full. A bucket that does not start full then begins to fill.
func (l *Limit) giveTokens(s *State, now Micros, hits uint64) Decision {
	if l.Hits == 0 {
		return Decision{}
	}
	var v bucketView
	v.set(l, s, now)
	if hits > 0 && v.spent != (amount{}) {
		v.spent = v.sub(v.spent, amount{n: hits})
		end := v.full(l)
		v.write(l, s)
		v.end = end
		v.keep(l, s)
	}
	down, _ := v.balance(l)
	return Decision{Left: uint64(max(down, 0)), ResetAfter: until(v.full(l), now)}
}
