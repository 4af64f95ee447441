package engine

import "time"

// State is the state of one limit of a counter. The zero State is that of a new counter. A State belongs to the [Slot] of the limit that
// wrote it. The limit's other fields may have changed since, through a reload of the rules or a request with its own limit. A State must
// not be copied while both the copy and the original are in use. The meaning of the fields depends on the algorithm: see [Family].
type State struct {
	at      Micros
	n       uint64
	part    uint64
	us      uint64
	full    Micros
	expires Micros // time from which the state is meaningless; 0 only in the zero State
	more    *more  // data that does not fit into the other fields, or nil
}

// more holds the variable-size part of a State.
type more struct {
	runs  queue[run]
	slots slots
	held  []held
}

// Empty reports whether s is the zero State, so that there is nothing to store.
func (s *State) Empty() bool { return s.expires == 0 }

// Expires returns the time from which s is equivalent to the zero State. A store may drop it then without affecting any decision, unless
// the clock jumps back before that time.
func (s *State) Expires() Micros { return s.expires }

// Weight returns the number of keys that s counts as in a cap on keys: usually 1. A state with many stamps or groups of slots counts one
// per 16 of them, and one with open reservations counts one per 4.
func (s *State) Weight() int {
	if s.more == nil {
		return 1
	}
	return max(1, (s.more.runs.len()+int(s.more.slots.count)+4*len(s.more.held)+15)/16)
}

// latest is the latest time that is handled, in the year 2112. Later times are clamped to it, so that a double still holds a time 100
// years later exactly.
const latest Micros = 1 << 52

// inRange clamps a time.
func inRange(now Micros) Micros { return min(max(now, 0), latest) }

// ask is a Take with clamped values: a double holds every number exactly, including count + extra.
type ask struct {
	now    Micros
	cost   uint64 // at least 1
	count  uint64
	want   uint64 // count + extra
	most   uint64 // upper bound set by the other limits of a list
	owner  string
	probe  bool // the cost was 0: only check whether a cost of 1 would be admitted
	write  bool // may consume hits, and move times in the future to now
	starts bool // starts a new bucket that does not start full
	listed bool // part of a list: rejected hits do not count, regardless of the limit
}

// set sets a, which must be zero, from t. It works in place to avoid a slow copy.
func (a *ask) set(now Micros, t *Take, write bool) {
	a.now = inRange(now)
	a.cost, a.count = min(t.Cost, MaxHits), min(t.Count, MaxHits)
	a.most = MaxHits
	a.owner = t.Owner
	a.write, a.starts = write, write
	a.want = a.count + min(t.Extra, MaxHits-a.count)
	if a.cost == 0 {
		a.cost, a.want, a.probe, a.write = 1, a.count, true, false
	}
}

// fit returns the number of takes of a that fit into left hits.
func (a *ask) fit(left uint64) uint64 {
	switch {
	case left < a.cost:
		return 0
	case a.probe:
		return a.want
	case a.cost == 1:
		return min(a.want, left)
	}
	return min(a.want, left/a.cost)
}

// judge returns the number of admitted takes if this limit has room for the given number. It also reports whether this limit, rather than
// another one of the list, rejects any take of Count.
func (a *ask) judge(room uint64) (admitted uint64, rejects bool) {
	return min(room, a.most), room < a.count && room <= a.most
}

// spends returns the hits consumed if the given number of takes is admitted: those of the admitted takes and, if counts is set, those of
// the rejected takes of Count.
func (a *ask) spends(admitted uint64, counts bool) uint64 {
	if !a.write {
		return 0
	}
	if counts && !a.listed && admitted < a.count {
		return Times(a.count, a.cost)
	}
	return Times(admitted, a.cost)
}

// Take consumes t.Cost up to t.Count+t.Extra times on all limits together. It updates s, whose i-th element is the state of the i-th
// limit, in place. It does not retain s, and copies the parts of t that it keeps. The result equals that of t.Count single takes in a
// row, followed, if all of them were admitted, by up to t.Extra more until the first rejection.
//
// A cost of 0 checks whether a cost of 1 would be admitted, and how much is left. If it would be, all of t.Count are admitted. They are
// also admitted if exactly the limit of a fixed window that counts rejected hits is consumed. A check writes nothing, except that a
// bucket with initial below its burst begins to fill at the first check.
func (l Limits) Take(s []*State, now Micros, t Take) (d Decision) {
	var a ask
	a.set(now, &t, true)
	l.take(s, &a, &d)
	return d
}

// Peek returns the result of Take without changing s.
func (l Limits) Peek(s []*State, now Micros, t Take) (d Decision) {
	var a ask
	a.set(now, &t, false)
	l.take(s, &a, &d)
	return d
}

// take implements Take and Peek.
func (l Limits) take(s []*State, a *ask, d *Decision) {
	if len(l) == 1 {
		l[0].take(s[0], a, d)
		return
	}
	l.takeAll(s, a, d)
}

// Refund refunds t.Cost·t.Count hits, but no more than were consumed. It always admits, and Left counts the hits left afterwards. If
// t.Window is set, a fixed window that began later is unchanged, because the hits were not consumed in it.
func (l Limits) Refund(s []*State, now Micros, t Take) Decision {
	var a ask
	a.set(now, &t, true)
	hits := Times(a.cost, a.count)
	if a.probe {
		hits = 0
	}
	d := l.giveAll(s, &a, hits, Micros(t.Window))
	d.Admitted = t.Count
	return d
}

// Reset sets s to zero States. The decision has Admitted 1, and Left describes the strictest limit.
func (l Limits) Reset(s []*State, now Micros) Decision {
	for i := range l {
		*s[i] = State{}
	}
	d := l.Refund(s, now, Take{})
	d.Admitted = 1
	return d
}

// left returns limit − used, or 0 if that is negative.
func left(limit, used uint64) uint64 {
	if used >= limit {
		return 0
	}
	return limit - used
}

// until returns the time from now to then, or 0 if then has passed.
func until(then, now Micros) time.Duration {
	return time.Duration(max(then-now, 0)) * time.Microsecond
}
