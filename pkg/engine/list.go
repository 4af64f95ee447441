package engine

// Several limits admit together or not at all: what is admitted is what the one with the least room admits, and only that
// is spent on each. Refused hits never count. The decision speaks of the strictest: among limits that refuse the one
// that does so for longest, else the one with least left; the first of them on ties.
//
// Two fields speak of all limits: Wait is the longest, and Window the latest start, so that giving back with it reaches
// each window that has not ended since.

// takeAll is take for a list.
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
		refuses := l[i].take(s[i], a, &e)
		if i > 0 && !stricter(&e, refuses, d, over) {
			d.merge(&e)
			continue
		}
		e.merge(d)
		*d, over = e, refuses
	}
}

// stricter reports whether d is stricter than e, which stands before it.
func stricter(d *Decision, dRefuses bool, e *Decision, eRefuses bool) bool {
	switch {
	case dRefuses != eRefuses:
		return dRefuses
	case dRefuses:
		return d.RetryAfter > e.RetryAfter
	}
	return d.Left < e.Left
}

// merge takes over from e what a decision says of all limits.
func (d *Decision) merge(e *Decision) {
	d.Wait = max(d.Wait, e.Wait)
	d.Window = max(d.Window, e.Window)
	d.Renewed = max(d.Renewed, e.Renewed)
}

// giveAll is give for a list.
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
