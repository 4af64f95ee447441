package engine

import "time"

// A sliding window and a sliding log are the same thing on two clocks: a list of runs, each the hits that share a tick,
// of which those of the last span ticks count. The ticks of a log are microseconds and its span is the window; the
// ticks of a sliding window are its sub-windows, and its span is one more than make up the window, because the oldest
// is counted whole.
//
// A log keeps its stamps when the length of its window changes. So that what a longer window counts is not lost while
// limits take turns, stamps stay for the longest window that was seen, up to as many hits as the largest limit
// could count.

// run is the hits that share a tick.
type run struct {
	at Micros
	n  uint64
}

// tick returns the tick that contains now.
func (l *Limit) tick(now Micros) Micros {
	if l.Algorithm == SlidingLog {
		return now
	}
	return l.cell(now)
}

// span returns how many ticks count, the current one included.
func (l *Limit) span() Micros {
	if l.Algorithm == SlidingLog {
		return l.Window
	}
	return Micros(l.Precision) + 1
}

// gone returns the time from which the hits of a tick no longer count.
func (l *Limit) gone(tick Micros) Micros {
	if l.Algorithm == SlidingLog {
		return tick + l.Window
	}
	return l.cellStart(tick + l.span())
}

// runsView is the state of a sliding window or log as seen at a given time.
type runsView struct {
	tick  Micros
	runs  []run // the runs that count, the oldest first
	count uint64
}

func (l *Limit) viewRuns(s *State, now Micros) runsView {
	v := runsView{tick: l.tick(now)}
	if now >= s.expires {
		return v
	}
	v.runs, v.count = s.more.runs.live(), s.n
	for len(v.runs) > 0 && v.tick-v.runs[0].at >= l.span() {
		v.count -= v.runs[0].n
		v.runs = v.runs[1:]
	}
	return v
}

// left returns how many more hits fit.
func (v *runsView) left(l *Limit) uint64 { return left(l.Hits, v.count) }

// free returns the time from which that many of the hits that count, the oldest, no longer do.
func (v *runsView) free(l *Limit, hits uint64) Micros {
	if hits == 0 {
		return 0
	}
	for _, r := range v.runs {
		if hits <= r.n {
			return l.gone(min(r.at, v.tick))
		}
		hits -= r.n
	}
	return 0
}

// settleRuns drops from s what counts for no limit any more, and moves what is from the future to now.
func (l *Limit) settleRuns(s *State, now Micros) {
	if now >= s.expires {
		*s = State{}
		return
	}
	q, tick, span := &s.more.runs, l.tick(now), l.span()
	if l.Algorithm == SlidingLog {
		span = max(span, s.at)
	}
	s.drop(func(r run) bool { return tick-r.at >= span })
	future := uint64(0)
	for q.len() > 0 && q.last().at > tick {
		future += q.last().n
		q.pop()
	}
	if future > 0 {
		s.n -= future
		l.addRun(s, tick, future)
		return
	}
	l.widen(s)
}

// addRun adds hits, at least one, at a tick that is not before any other in s.
func (l *Limit) addRun(s *State, tick Micros, hits uint64) {
	if s.more == nil {
		s.more = new(more)
	}
	q := &s.more.runs
	if q.len() > 0 && q.last().at == tick {
		q.last().n += hits
	} else {
		q.push(run{tick, hits})
	}
	s.n += hits
	l.widen(s)
}

// widen keeps what is in s for as long as l needs it, and drops what no limit needs that took from s.
func (l *Limit) widen(s *State) {
	last := s.more.runs.last().at
	s.expires = l.gone(last)
	if l.Algorithm == SlidingLog {
		s.at, s.part = max(s.at, l.Window), max(s.part, l.Hits)
		s.expires = last + s.at
		s.drop(func(r run) bool { return s.n-r.n >= 2*s.part })
	}
}

// drop drops the oldest runs, up to the first that is not dead.
func (s *State) drop(dead func(run) bool) {
	n := 0
	for _, r := range s.more.runs.live() {
		if !dead(r) {
			break
		}
		s.n -= r.n
		n++
	}
	s.more.runs.drop(n)
}

func (l *Limit) takeRuns(s *State, a *ask, d *Decision) (refuses bool) {
	if a.write {
		l.settleRuns(s, a.now)
	}
	v := l.viewRuns(s, a.now)
	d.Left = v.left(l)
	d.Admitted, refuses = a.judge(a.fit(d.Left))
	if spent := min(a.spends(d.Admitted, l.CountRefused), left(2*l.Hits, v.count)); spent > 0 { // a count is at most twice the limit
		l.addRun(s, v.tick, spent)
		v = l.viewRuns(s, a.now)
	}
	d.ResetAfter = l.whole(&v, a.now)
	switch {
	case refuses && a.cost > l.Hits:
		d.RetryAfter = d.ResetAfter
	case refuses:
		d.RetryAfter = until(v.free(l, left(v.count+a.cost, l.Hits)), a.now)
	}
	return refuses
}

// whole returns how long it takes until nothing counts any more.
func (l *Limit) whole(v *runsView, now Micros) time.Duration {
	if len(v.runs) == 0 {
		return 0
	}
	return until(l.gone(min(v.runs[len(v.runs)-1].at, v.tick)), now)
}

// giveRuns removes the oldest hits, which never admits more than if the hits given back had not been spent. Where a
// longer window has stamps of its own, those go first.
func (l *Limit) giveRuns(s *State, now Micros, hits uint64) Decision {
	if now < s.expires {
		l.settleRuns(s, now)
	} else {
		hits = 0
	}
	if hits = min(hits, s.n); hits > 0 {
		s.n -= hits
		q := &s.more.runs
		for ; q.live()[0].n <= hits && s.n > 0; q.drop(1) {
			hits -= q.live()[0].n
		}
		q.live()[0].n -= hits
		if s.n == 0 {
			*s = State{}
		}
	}
	v := l.viewRuns(s, now)
	return Decision{Left: v.left(l), ResetAfter: l.whole(&v, now)}
}
