package engine

// A fixed window counts hits in windows that follow each other: at most Hits in each, and so at most twice as many in any
// span of a window's length.
//
// A window that has begun runs to its end even if the rule's alignment changes meanwhile.

// WindowAt is the fixed window that now is in, or the one that a hit at now would begin. How windows lie in time is said
// here and nowhere else.
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

// fixedView is what the state of a fixed window says at a time.
type fixedView struct {
	start, end Micros
	count      uint64
	begun      bool // false where the window waits for its first hit
	moved      bool // from the future to now
}

// set fills v, which is zero, in where it lies.
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

// room is how many of what a wants the window admits. A look for nothing passes at exactly the limit where refused hits
// count, as in envoyproxy/ratelimit.
func (v *fixedView) room(l *Limit, a *ask) uint64 {
	if a.probe && l.CountRefused && !a.listed && v.count <= l.Hits {
		return a.want
	}
	return a.fit(left(l.Hits, v.count))
}

// write makes s say what v does, with count hits.
func (v *fixedView) write(s *State, count uint64) {
	s.at, s.expires, s.n = v.start, v.end, count
	v.begun = true
}

// report fills in the part of a decision that every call has.
func (v *fixedView) report(d *Decision, now Micros, left uint64) {
	d.Left = left
	if v.begun {
		d.ResetAfter, d.Window = until(v.end, now), int64(v.start)
	}
}

func (l *Limit) takeFixed(s *State, a *ask, d *Decision) (refuses bool) {
	var v fixedView
	v.set(l, s, a.now)
	d.Admitted, refuses = a.judge(v.room(l, a))
	spent := a.spends(d.Admitted, l.CountRefused)
	if spent > 0 || v.moved {
		v.write(s, min(v.count+spent, MaxHits))
	}
	v.report(d, a.now, left(l.Hits, v.count))
	if refuses {
		d.RetryAfter = d.ResetAfter
	}
	return refuses
}

// giveFixed gives hits back, unless they were spent before the present window began.
func (l *Limit) giveFixed(s *State, now Micros, hits uint64, window Micros) (d Decision) {
	var v fixedView
	v.set(l, s, now)
	if window != 0 && window < v.start {
		hits = 0
	}
	if now < s.expires {
		v.count = left(v.count, hits)
		v.write(s, v.count)
	}
	v.report(&d, now, left(l.Hits, v.count))
	return d
}
