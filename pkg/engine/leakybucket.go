package engine

// A leaky bucket is a queue of Burst places that empties at the limit's rate. The decision on an admitted hit contains the wait for its
// turn. In any time t at most rate·t hits plus the cost of one request have their turn. Turns follow the order of the takes, regardless
// of the limits that admitted them.

// places returns the number of hits that the queue has room for. A take is admitted if its wait is less than (Burst − cost + 1)·W/L; with
// a cost of 1, if fewer than Burst hits are ahead of it. If limits with different rates share a queue, each hit ahead counts until its
// promised turn.
func (v *bucketView) places(l *Limit) uint64 {
	if l.Hits == 0 {
		return 0
	}
	return left(l.Burst, v.spent.n)
}

// takeTurns implements take for a leaky bucket.
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

// giveTurns refunds nothing, because the turns of later callers are already promised.
func (l *Limit) giveTurns(s *State, now Micros) Decision {
	if l.Hits == 0 {
		return Decision{}
	}
	var v bucketView
	v.set(l, s, now)
	return Decision{Left: v.places(l), ResetAfter: until(v.full(l), now)}
}
