package engine

// The limits of a list admit together or not at all: the limit with the least room determines how much is admitted, and exactly that is
// consumed on each limit. Rejected hits never count. The decision describes the strictest limit: among those that reject, the one with
// the longest RetryAfter; otherwise the one with the least left; on a tie, the first.
//
// Three fields describe all limits: Wait and Renewed are the maximum, and Window is the latest start, so that a Refund with it reaches
// every window that has not ended since.

// takeAll implements Limits.take for several limits.
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

// stricter reports whether d is stricter than e, which precedes it in the list.
func stricter(d *Decision, dRejects bool, e *Decision, eRejects bool) bool {
	switch {
	case dRejects != eRejects:
		return dRejects
	case dRejects:
		return d.RetryAfter > e.RetryAfter
	}
	return d.Left < e.Left
}

// merge combines the fields that describe all limits.
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
