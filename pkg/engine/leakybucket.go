package engine

// A leaky bucket is a queue of Burst places that empties at the limit's rate: the decision on an admitted hit says how long to wait
// for its turn, and in any time t at most rate·t hits plus the cost of one request have their turn. Turns come in the
// order of the takes, whatever limits they were taken by.

// places returns how many hits the queue has room for. A take is admitted while its wait is less than (Burst − cost +
// 1)·W/L: with a cost of 1, while fewer than Burst hits are ahead of it. Where limits of different rates share a queue, the
// hits ahead count, each until its turn has come, at the rate that it was promised at.
func (v *bucketView) places(l *Limit) uint64 {
	if l.Hits == 0 {
		return 0
	}
	return left(l.Burst, v.spent.n)
}

func (l *Limit) takeTurns(s *State, a *ask, d *Decision) (rejects bool) {
	if l.Hits == 0 {
		return true
	}
	var v bucketView
	v.set(l, s, a.now)
	d.Left = v.places(l)
	d.Admitted, rejects = a.judge(a.fit(d.Left))
	if d.Admitted > 0 {
		d.Wait = until(v.full(l), a.now)
	}
	switch {
	case a.write && d.Admitted > 0:
		v.queue(l, s, d.Admitted, a.cost)
	case a.write && v.moved:
		v.move(s)
	}
	d.ResetAfter = until(v.full(l), a.now)
	switch {
	case rejects && v.mixed:
		d.RetryAfter = d.ResetAfter
	case rejects:
		d.RetryAfter = until(v.atMost(v.below(l, l.Burst-a.cost+1)), a.now)
	}
	return rejects
}

// giveTurns gives nothing back, because callers have already been promised their turns.
func (l *Limit) giveTurns(s *State, now Micros) Decision {
	if l.Hits == 0 {
		return Decision{}
	}
	var v bucketView
	v.set(l, s, now)
	return Decision{Left: v.places(l), ResetAfter: until(v.full(l), now)}
}
