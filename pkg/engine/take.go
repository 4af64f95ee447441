package engine

import "time"

// State is what one limit has counted so far. The zero State is that of a key not seen before. A State belongs to the [Slot] of the
// limit that wrote it. The limit's other fields may have changed since then, through a reload of the rules or a request that
// brought its own limit. A State must not be copied while both the copy and the original are in use. The meaning of its fields
// depends on the algorithm: see [Family].
type State struct {
	at      Micros
	n       uint64
	part    uint64
	us      uint64
	full    Micros
	expires Micros // from this time on the state means nothing; 0 only in the zero State
	more    *more  // what does not fit into the other fields, or nil
}

// more holds the part of a State that grows.
type more struct {
	runs  queue[run]
	slots slots
	held  []held
}

// Empty reports whether s is the state of a key not seen before, so that there is nothing to store.
func (s *State) Empty() bool { return s.expires == 0 }

// Expires returns the time from which s means the same as the zero State. Stores may drop it from then on; no decision
// depends on whether they did, unless the clock jumps back to before that time.
func (s *State) Expires() Micros { return s.expires }

// Weight returns how many keys s counts as against a cap on keys: 1, or more for a state that holds many stamps or
// groups of slots (one per 16), or open reservations (one per 4).
func (s *State) Weight() int {
	if s.more == nil {
		return 1
	}
	return max(1, (s.more.runs.len()+int(s.more.slots.count)+4*len(s.more.held)+15)/16)
}

// latest is the last time that is handled, in the year 2112. Later times are clamped to it, so that a time 100 years
// after it still fits a double exactly.
const latest Micros = 1 << 52

func inRange(now Micros) Micros { return min(max(now, 0), latest) }

// ask is a Take brought into range: every number fits a double exactly, and so does count + extra.
type ask struct {
	now    Micros
	cost   uint64 // at least 1
	count  uint64
	want   uint64 // count + extra
	most   uint64 // what the other limits of a list admit, at most
	owner  string
	probe  bool // the cost was 0: only see whether a cost of 1 would be admitted
	write  bool // it may spend hits, and move times that lie in the future to now
	starts bool // it starts a bucket that was not seen before and does not start full
	listed bool // of a list: rejected hits do not count, whatever the limit says
}

// set fills a, which is zero, from t. It writes in place because copying what was just written is slow.
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

// fit returns how many of the takes that a wants fit into left hits.
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

// judge returns how many takes are admitted when this limit has room for that many, and whether it is this limit that
// rejects one of Count.
func (a *ask) judge(room uint64) (admitted uint64, rejects bool) {
	return min(room, a.most), room < a.count && room <= a.most
}

// spends returns the hits that are spent when that many takes are admitted: those of the admitted takes and, if counts
// is set, those of the rejected ones of Count.
func (a *ask) spends(admitted uint64, counts bool) uint64 {
	if !a.write {
		return 0
	}
	if counts && !a.listed && admitted < a.count {
		return Times(a.count, a.cost)
	}
	return Times(admitted, a.cost)
}

// Take spends t.Cost up to t.Count+t.Extra times on all limits together, and updates s, whose i-th element is the state
// of the i-th limit, in place. It keeps no reference to s, and copies what it keeps of t. The result equals that of
// t.Count single takes in a row and then, if all of them were admitted, t.Extra more up to the first that is rejected.
//
// A cost of 0 asks whether a cost of 1 would be admitted, and how much is left. If it would be, all of t.Count are
// admitted. They are also admitted where exactly the limit of a fixed window that counts rejected hits is spent. Nothing is
// written, except that a bucket which starts with less than its burst begins to fill when it is first asked.
func (l Limits) Take(s []*State, now Micros, t Take) (d Decision) {
	var a ask
	a.set(now, &t, true)
	l.take(s, &a, &d)
	return d
}

// Peek returns what Take would return, and changes nothing.
func (l Limits) Peek(s []*State, now Micros, t Take) (d Decision) {
	var a ask
	a.set(now, &t, false)
	l.take(s, &a, &d)
	return d
}

func (l Limits) take(s []*State, a *ask, d *Decision) {
	if len(l) == 1 {
		l[0].take(s[0], a, d)
		return
	}
	l.takeAll(s, a, d)
}

// Refund refunds t.Cost·t.Count hits, but no more than were spent. It is always admitted, and the decision's Left counts the hits
// that are left afterwards. With t.Window set, a fixed window that began later stays as it is, because the hits were not spent in
// it.
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

// Reset forgets everything that s has counted. The decision has Admitted 1, and Left is what the strictest limit has
// left.
func (l Limits) Reset(s []*State, now Micros) Decision {
	for i := range l {
		*s[i] = State{}
	}
	d := l.Refund(s, now, Take{})
	d.Admitted = 1
	return d
}

// left returns what remains of limit after used, at least 0.
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
