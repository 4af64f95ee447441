package engine

import (
	"slices"
	"time"
)

// Sliding windows and sliding logs are the same algorithm on two clocks: a list of runs, each with the hits of one tick, of which those
// of the last span ticks count. The ticks of a log are microseconds, and its span is the window. The ticks of a sliding window are its
// sub-windows, and its span is one more than the window has, because the oldest counts completely.
//
// A log keeps its stamps if the length of its window changes. Stamps are kept for the longest window of the limits that share the state,
// so that alternating limits do not lose hits, up to as many hits as the largest limit could count.

// run holds the hits of one tick. They are the difference between its sum and that of the previous run, so the hits from any run on are
// known without adding up.
type run struct {
	at  Micros
	sum uint64
}

// tick returns the tick that contains now.
func (l *Limit) tick(now Micros) Micros {
	if l.Algorithm == SlidingLog {
		return now
	}
	return l.cell(now)
}

// span returns the number of ticks that count, including the current one.
func (l *Limit) span() Micros {
	if l.Algorithm == SlidingLog {
		return l.Window
	}
	return Micros(l.Precision) + 1
}

// expiry returns the time from which the hits of a tick no longer count.
func (l *Limit) expiry(tick Micros) Micros {
	if l.Algorithm == SlidingLog {
		return tick + l.Window
	}
	return l.cellStart(tick + l.span())
}

// runsView is the state of a sliding window or log at a given time.
type runsView struct {
	tick   Micros
	first  int    // index of the first run that counts
	runs   []run  // the runs that count, oldest first
	before uint64 // the sum before the first of them
	count  uint64
}

// viewRuns returns the state at now.
func (l *Limit) viewRuns(s *State, now Micros) runsView {
	v := runsView{tick: l.tick(now)}
	if now >= s.expires {
		return v
	}
	all := s.more.runs.live()
	v.first = sinceTick(all, v.tick-l.span())
	v.runs, v.before = all[v.first:], s.sumBefore(v.first)
	v.count = all[len(all)-1].sum - v.before
	return v
}

// sinceTick returns the index of the first run after a tick.
func sinceTick(all []run, tick Micros) int {
	if all[0].at > tick { // the usual case
		return 0
	}
	return firstRun(all, func(r run) bool { return r.at > tick })
}

// firstRun returns the index of the first run that satisfies is. All later runs must satisfy it too.
func firstRun(all []run, is func(run) bool) int {
	i, _ := slices.BinarySearchFunc(all, true, func(r run, _ bool) int {
		if is(r) {
			return 1
		}
		return -1
	})
	return i
}

// sumBefore returns the sum before the i-th run. There must be at least one run.
func (s *State) sumBefore(i int) uint64 {
	q := &s.more.runs
	if i > 0 {
		return q.live()[i-1].sum
	}
	return q.last().sum - s.n
}

// left returns the number of hits that still fit.
func (v *runsView) left(l *Limit) uint64 { return left(l.Hits, v.count) }

// free returns the time from which the given number of the oldest hits no longer count.
func (v *runsView) free(l *Limit, hits uint64) Micros {
	if hits == 0 {
		return 0
	}
	i := firstRun(v.runs, func(r run) bool { return r.sum-v.before >= hits })
	if i == len(v.runs) {
		return 0
	}
	return l.expiry(min(v.runs[i].at, v.tick))
}

// settleRuns drops hits that no limit counts any more, and moves hits from the future to now.
func (l *Limit) settleRuns(s *State, now Micros) {
	if now >= s.expires {
		*s = State{}
		return
	}
	q, tick, span := &s.more.runs, l.tick(now), l.span()
	if l.Algorithm == SlidingLog {
		span = max(span, s.at)
	}
	s.drop(sinceTick(q.live(), tick-span))
	if past := sinceTick(q.live(), tick); past < q.len() {
		before := s.sumBefore(past)
		future := q.last().sum - before
		q.cut(past)
		s.n -= future
		l.addRun(s, run{tick, before + future}, future)
		return
	}
	l.widen(s)
}

// addRun adds at least one hit at a tick that is not before any other in s. r.sum is the new total.
func (l *Limit) addRun(s *State, r run, hits uint64) {
	if s.more == nil {
		s.more = new(more)
	}
	q := &s.more.runs
	if q.len() > 0 && q.last().at == r.at {
		*q.last() = r
	} else {
		q.push(r)
	}
	s.n += hits
	l.widen(s)
}

// widen updates the expiry of s for l, and drops hits that no limit that took from s needs.
func (l *Limit) widen(s *State) {
	last := *s.more.runs.last()
	s.expires = l.expiry(last.at)
	if l.Algorithm == SlidingLog {
		s.at, s.part = max(s.at, l.Window), max(s.part, l.Hits)
		s.expires = last.at + s.at
		if enough := 2 * s.part; s.n > enough {
			s.drop(firstRun(s.more.runs.live(), func(r run) bool { return last.sum-r.sum < enough }))
		}
	}
}

// drop drops the n oldest runs.
func (s *State) drop(n int) {
	if n > 0 {
		s.n -= s.sumBefore(n) - s.sumBefore(0)
		s.more.runs.drop(n)
	}
}

// takeRuns implements take for a sliding window or log.
func (l *Limit) takeRuns(s *State, a *ask, d *Decision) (rejects bool) {
	if a.write {
		l.settleRuns(s, a.now)
	}
	v := l.viewRuns(s, a.now)
	d.Left = v.left(l)
	d.Admitted, rejects = a.judge(a.fit(d.Left))
	if spent := min(a.spends(d.Admitted, l.CountRefused), left(2*l.Hits, v.count)); spent > 0 { // a count is at most twice the limit
		l.addRun(s, run{v.tick, v.before + v.count + spent}, spent)
		v = l.viewRuns(s, a.now)
	}
	d.ResetAfter = l.emptyIn(&v, a.now)
	if rejects {
		d.RetryAfter = until(v.free(l, left(v.count+a.cost, l.Hits)), a.now)
	}
	return rejects
}

// emptyIn returns the time until no hit counts any more.
func (l *Limit) emptyIn(v *runsView, now Micros) time.Duration {
	if len(v.runs) == 0 {
		return 0
	}
	return until(l.expiry(min(v.runs[len(v.runs)-1].at, v.tick)), now)
}

// giveRuns refunds hits consumed at the given time, if they still count: those of its tick, or the oldest ones if those of its tick have
// already been refunded. If the time is 0 (unknown), it refunds the oldest hits, which never admits more than if the hits had not been
// consumed.
func (l *Limit) giveRuns(s *State, now Micros, hits uint64, at Micros) Decision {
	if now < s.expires {
		l.settleRuns(s, now)
	}
	v := l.viewRuns(s, now)
	switch tick := l.tick(at); {
	case at == 0:
	case v.tick-tick >= l.span():
		hits = 0
	default:
		i := firstRun(v.runs, func(r run) bool { return r.at >= tick })
		if i < len(v.runs) && v.runs[i].at == tick {
			hits -= l.remove(s, &v, i, min(hits, v.runs[i].sum-s.sumBefore(v.first+i)))
			v = l.viewRuns(s, now)
		}
	}
	if hits = min(hits, v.count); hits > 0 {
		l.remove(s, &v, 0, hits)
		v = l.viewRuns(s, now)
	}
	return Decision{Left: v.left(l), ResetAfter: l.emptyIn(&v, now)}
}

// remove removes hits from s, starting with the i-th run that counts, and returns their number.
func (l *Limit) remove(s *State, v *runsView, i int, hits uint64) uint64 {
	if s.n == hits {
		*s = State{}
		return hits
	}
	q, runs, first := &s.more.runs, v.runs[i:], v.first+i
	before := s.sumBefore(first)
	dropped := firstRun(runs, func(r run) bool { return r.sum-before > hits })
	s.n -= hits
	if first == 0 {
		q.drop(dropped)
		return hits
	}
	for k := range runs { // earlier runs are unchanged
		runs[k].sum -= hits
	}
	q.delete(first, first+dropped)
	l.widen(s)
	return hits
}
