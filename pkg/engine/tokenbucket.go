package engine

// A token bucket holds up to Burst tokens and refills at the limit's rate; a hit takes one. In any time t at most Burst
// + rate·t hits are admitted, plus Debt where the balance may go negative.

// balance returns the tokens in the bucket, rounded down and up; they are negative while the bucket is in debt.
func (v *bucketView) balance(l *Limit) (down, up int64) {
	up = int64(l.Burst) - int64(v.used)
	if v.more {
		return up - 1, up
	}
	return up, up
}

// tokens returns how many of the takes that a wants the bucket admits.
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
	owing := (uint64(max(up, 0)) + a.cost - 1) / a.cost
	return min(owing, a.fit(uint64(down+int64(l.Debt))))
}

func (l *Limit) takeTokens(s *State, a *ask, d *Decision) (refuses bool) {
	if l.Hits == 0 {
		return true
	}
	var v bucketView
	v.set(l, s, a.now)
	d.Admitted, refuses = a.judge(v.tokens(l, a))
	down, _ := v.balance(l)
	spent := a.spends(d.Admitted, l.CountRefused)
	if spent > 0 {
		v.spend(l, spent)
	}
	if spent > 0 || v.moved || !v.seen && l.Initial < l.Burst {
		v.write(l, s, a.now)
	}
	d.Left, d.ResetAfter = uint64(max(down, 0)), until(v.full(l), a.now)
	if refuses {
		d.RetryAfter = until(v.retry(l, a.cost), a.now)
	}
	return refuses
}

// spend takes hits out of the bucket. Only counted refused hits can exceed what it may give; they lower the balance to
// −Burst at most.
func (v *bucketView) spend(l *Limit, hits uint64) {
	most := l.Burst + l.depth()
	v.wait = v.add(v.wait, v.of(min(hits, most)))
	if l.CountRefused {
		if deepest := v.of(most); deepest.less(v.wait) {
			v.wait = deepest
		}
	}
}

// retry returns when cost would be admitted, or when the bucket is full if it never would be.
func (v *bucketView) retry(l *Limit, cost uint64) Micros {
	if cost > l.Burst+l.Debt {
		return v.full(l)
	}
	at := v.base
	if l.Debt > 0 {
		if full := v.of(l.Burst); !v.wait.less(full) { // first the balance has to rise above 0
			at = v.base + v.sub(v.wait, full).over()
		}
	}
	return l.stepUp(max(at, v.base+v.sub(v.wait, v.of(l.Burst+l.Debt-cost)).up()))
}

// giveTokens moves the timestamp back by the time that hits last, but not to before now; one that has already passed
// stays.
func (l *Limit) giveTokens(s *State, now Micros, hits uint64) Decision {
	if l.Hits == 0 {
		return Decision{}
	}
	var v bucketView
	v.set(l, s, now)
	if v.wait != (span{}) && v.seen {
		if hits > v.used {
			v.wait, v.used, v.more = span{}, 0, false
		} else {
			v.wait = v.sub(v.wait, v.of(hits))
			v.used -= hits
		}
		v.write(l, s, now)
	}
	down, _ := v.balance(l)
	return Decision{Left: uint64(max(down, 0)), ResetAfter: until(v.full(l), now)}
}
