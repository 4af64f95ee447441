package engine

// A fixed window counts hits in consecutive windows: at most Hits in each, and so at most twice as many in any period of a window's
// length.
//
// A window that has begun continues to its end even if the rule's alignment changes.

// WindowAt returns the fixed window that contains now, or that a hit at now would begin. Only WindowAt determines the bounds of windows.
func (l *Limit) WindowAt(now Micros) (start, end Micros) {
	switch {
	case l.Calendar != nil:
		return l.Calendar.window(inRange(now))
	case l.Align == AlignFirst:
		return now, now + l.Window
	}
	start = now - now%l.Window
	return start, start + l.Window
}

// fixedView is a fixed window's state at a given time.
type fixedView struct {
	start, end Micros
	count      uint64
	begun      bool // false while the window waits for its first hit
	moved      bool // the state was from the future and was moved to now
}

// set sets v, which must be zero.
func (v *fixedView) set(l *Limit, s *State, now Micros) {
	if s.at <= now && now < s.expires {
		v.start, v.end, v.count, v.begun = s.at, s.expires, s.n, true
		return
	}
	v.start, v.end = l.WindowAt(now)
	v.moved = now < s.expires
	v.begun = v.moved || l.Align == AlignClock
	if v.moved {
		v.count = s.n
	}
}

// room returns the number of takes of a that the window admits. If rejected hits count, a check with a cost of 0 is admitted at exactly
// the limit, as in envoyproxy/ratelimit.
func (v *fixedView) room(l *Limit, a *ask) uint64 {
	if a.probe && l.CountRefused && !a.listed && v.count <= l.Hits {
		return a.want
	}
	return a.fit(left(l.Hits, v.count))
}

// write stores v in s, with the given count.
func (v *fixedView) write(s *State, count uint64) {
	s.at, s.expires, s.n = v.start, v.end, count
	v.begun = true
}

// report sets the fields of a decision that every call sets.
func (v *fixedView) report(d *Decision, now Micros, left uint64) {
	d.Left = left
	if v.begun {
		d.ResetAfter, d.Window = until(v.end, now), int64(v.start)
		if v.end == endless {
			d.ResetAfter = Never
		}
	}
}

// takeFixed implements take for a fixed window.
func (l *Limit) takeFixed(s *State, a *ask, d *Decision) (rejects bool) {
	var v fixedView
	v.set(l, s, a.now)
	d.Admitted, rejects = a.judge(v.room(l, a))
	spent := a.spends(d.Admitted, l.CountRefused)
	if spent > 0 || a.write && v.moved {
		v.write(s, min(v.count+spent, MaxHits))
	}
	v.report(d, a.now, left(l.Hits, v.count))
	if rejects {
		d.RetryAfter = d.ResetAfter
	}
	return rejects
}

// giveFixed refunds hits, unless they were consumed before the current window began. A count of [MaxHits] does not change: it may have
// lost hits, so a refund could open the window.
func (l *Limit) giveFixed(s *State, now Micros, hits uint64, window Micros) (d Decision) {
	var v fixedView
	v.set(l, s, now)
	if window != 0 && window < v.start || v.count == MaxHits {
		hits = 0
	}
	if now < s.expires {
		v.count = left(v.count, hits)
		v.write(s, v.count)
	}
	v.report(&d, now, left(l.Hits, v.count))
	return d
}
