package engine

// A fixed window counts hits in consecutive windows: at most Hits in each, and so at most twice as many in any span of
// a window's length.
//
// A window that has begun runs to its end even if the rule's alignment changes in the meantime.

// WindowAt returns the fixed window that contains now, or the one that a hit at now would begin. It is the only place
// that decides where windows begin and end.
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

// fixedView is the state of a fixed window as seen at a given time.
type fixedView struct {
	start, end Micros
	count      uint64
	begun      bool // false while the window waits for its first hit
	moved      bool // the state was from the future, and was moved to now
}

// set fills in v, which is zero.
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

// room returns how many of the takes that a wants the window admits. Where rejected hits count, a check with a cost of 0
// is admitted at exactly the limit, as in envoyproxy/ratelimit.
func (v *fixedView) room(l *Limit, a *ask) uint64 {
	if a.probe && l.CountRefused && !a.listed && v.count <= l.Hits {
		return a.want
	}
	return a.fit(left(l.Hits, v.count))
}

// write stores v in s, with count hits.
func (v *fixedView) write(s *State, count uint64) {
	s.at, s.expires, s.n = v.start, v.end, count
	v.begun = true
}

// report fills in the fields of a decision that every call sets.
func (v *fixedView) report(d *Decision, now Micros, left uint64) {
	d.Left = left
	if v.begun {
		d.ResetAfter, d.Window = until(v.end, now), int64(v.start)
	}
}

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

// giveFixed refunds hits, unless they were spent before the current window began. A count that has reached [MaxHits]
// stays there: it may have lost hits, so that what is refunded could open the window.
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
