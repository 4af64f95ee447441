package engine

// The limits of a list admit together or not at all: the one with the least room decides how much is admitted, and
// exactly that is spent on each. Rejected hits never count. The decision describes the strictest limit: of those that
// reject, the one that does so for longest, otherwise the one with the least left; on a tie, the first.
//
// Three fields cover all limits: Wait is the longest, Window the latest start, so that a Refund with it reaches every
// window that has not ended since, and Renewed the most.

// takeAll is Limits.take for several limits.
func (l Limits) takeAll(s []*State, a *ask, d *Decision) {
	a.listed = true
	a.most = min(a.most, a.want)
	for i := range l {
		a.most = min(a.most, l[i].room(s[i], a))
	}
	d.Admitted = a.most
	over := false
	for i := range l {
		e := Decision{Strictest: i}
		rejects := l[i].take(s[i], a, &e)
		if i > 0 && !stricter(&e, rejects, d, over) {
			d.merge(&e)
			continue
		}
		e.merge(d)
		*d, over = e, rejects
	}
}

// stricter reports whether d is stricter than e, which comes before it in the list.
func stricter(d *Decision, dRejects bool, e *Decision, eRejects bool) bool {
	switch {
	case dRejects != eRejects:
		return dRejects
	case dRejects:
		return d.RetryAfter > e.RetryAfter
	}
	return d.Left < e.Left
}

// merge takes from e the fields that cover all limits.
func (d *Decision) merge(e *Decision) {
	d.Wait = max(d.Wait, e.Wait)
	d.Window = max(d.Window, e.Window)
	d.Renewed = max(d.Renewed, e.Renewed)
}

// giveAll refunds hits to each limit.
func (l Limits) giveAll(s []*State, a *ask, hits uint64, window Micros) Decision {
	var d Decision
	for i := range l {
		e := l[i].give(s[i], a, hits, window)
		e.Strictest = i
		if i > 0 && e.Left >= d.Left {
			d.merge(&e)
			continue
		}
		e.merge(&d)
		d = e
	}
	return d
}
