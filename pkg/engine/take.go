package engine

import "time"

// State is what one limit has counted so far. The zero State is that of a key not seen before. A State belongs to the
// Limit's [Slot] that wrote it; the limit's other fields may have changed since, by a reload of the rules or by a
// request that brought its own. A State must not be copied while the copy and the original are both in use.
//
// What the fields mean depends on the algorithm:
//
//	fixed_window               at: start of the window; n: hits in it
//	sliding_window             n: hits in all of more.runs, each at the number of its sub-window
//	sliding_log                n: hits in all of more.runs, each at its time
//	token_bucket, leaky_bucket at + n/den: the time at which the bucket is full, or the queue empty
//	concurrency                n: slots in all of more.holders
//	a penalty's gate           at: its end; n: how long it lasts
type State struct {
	at      Micros
	n       uint64
	expires Micros // from here on the state says nothing; 0 only in the zero State
	more    *more  // what does not fit above, else nil
	den     uint32
}

// more holds the part of a State that grows.
type more struct {
	runs    queue[run]
	holders queue[holder]
}

// Empty reports whether s is that of a key not seen before, so that there is nothing to store.
func (s *State) Empty() bool { return s.expires == 0 }

// Expires is the time from which s says no more than the zero State does. Stores may drop it from then on; no decision
// depends on whether they did, unless the clock jumps back to before it.
func (s *State) Expires() Micros { return s.expires }

// Weight is what s counts for against a cap on keys: 1, and more for a state that holds many stamps (one per 16).
func (s *State) Weight() int {
	if s.more == nil {
		return 1
	}
	return max(1, (s.more.runs.len()+s.more.holders.len()+15)/16)
}

// latest is the last time that is told apart, in the year 2112; a later one counts as this one, so that 100 years more
// still fit a double.
const latest Micros = 1 << 52

func inRange(now Micros) Micros { return min(max(now, 0), latest) }

// ask is a Take brought into range: every number fits a double, and so does count + extra.
type ask struct {
	now    Micros
	cost   uint64 // at least 1
	count  uint64
	want   uint64 // count and extra
	most   uint64 // what the other limits of a list admit
	owner  string
	probe  bool // the cost was 0: see whether a cost of 1 would pass
	write  bool
	listed bool // refused hits do not count, whatever the limit says
}

// set makes a of t. It fills a in where it lies, for copies of what was just written are slow.
func (a *ask) set(now Micros, t *Take, write bool) {
	a.now = inRange(now)
	a.cost, a.count = min(t.Cost, MaxHits), min(t.Count, MaxHits)
	a.most = MaxHits
	a.owner = t.Owner
	a.write = write
	a.want = a.count + min(t.Extra, MaxHits-a.count)
	if a.cost == 0 {
		a.cost, a.want, a.probe, a.write = 1, a.count, true, false
	}
}

// fit is how many of the hits that a wants fit into left.
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

// judge is how many of what a wants are admitted where this limit has room for so many, and whether it is this limit
// that refuses one of Count.
func (a *ask) judge(room uint64) (admitted uint64, refuses bool) {
	return min(room, a.most), room < a.count && room <= a.most
}

// spends is the hits that are spent where so many are admitted: theirs, and with counts, those of the refused ones of Count.
func (a *ask) spends(admitted uint64, counts bool) uint64 {
	if !a.write {
		return 0
	}
	if counts && !a.listed && admitted < a.count {
		return times(a.count, a.cost)
	}
	return times(admitted, a.cost)
}

// Take spends t.Cost up to t.Count+t.Extra times on all limits together, and updates s, whose i-th element is the state
// of the i-th limit, in place. It keeps no reference to s, and copies what it keeps of t. It equals t.Count takes of
// one after the other, and then, if all of them were admitted, t.Extra more up to the first that is refused. A cost of
// 0 is a [Limits.Look].
func (l Limits) Take(s []*State, now Micros, t Take) (d Decision) {
	var a ask
	a.set(now, &t, true)
	l.take(s, &a, &d)
	return d
}

// Look tells what Take would answer, and spends nothing. It leaves s alone, but for two cases: a bucket that starts with
// less than its burst begins to fill when it is first asked, and what comes from the future is moved to now, or callers
// that look before they take would wait for it. With a cost of 0 all of t.Count are admitted where a cost of 1
// would be; a fixed window that counts refused hits admits them at exactly its limit as well.
func (l Limits) Look(s []*State, now Micros, t Take) (d Decision) {
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

// Give gives t.Cost·t.Count hits back, at most what was spent, and is always admitted. The decision's Left is what is left
// afterwards. With t.Window a fixed window that has begun after it is left alone, for its hits were others.
func (l Limits) Give(s []*State, now Micros, t Take) Decision {
	var a ask
	a.set(now, &t, true)
	hits := times(a.cost, a.count)
	if a.probe {
		hits = 0
	}
	d := l.giveAll(s, &a, hits, Micros(t.Window))
	d.Admitted = t.Count
	return d
}

// Reset forgets everything that s has counted. The decision has Admitted 1, and the hits that the strictest limit has left.
func (l Limits) Reset(s []*State, now Micros) Decision {
	for i := range l {
		*s[i] = State{}
	}
	d := l.Give(s, now, Take{})
	d.Admitted = 1
	return d
}

// take decides a on l, admitting no more than a.most, and writes s where a.write is set. It fills in d, which is zero,
// and reports whether l has no room for all of Count, be it alone or after what the others of a list admit.
func (l *Limit) take(s *State, a *ask, d *Decision) (refuses bool) {
	switch l.Algorithm {
	case FixedWindow:
		return l.takeFixed(s, a, d)
	case SlidingWindow, SlidingLog:
		return l.takeRuns(s, a, d)
	case TokenBucket:
		return l.takeTokens(s, a, d)
	case LeakyBucket:
		return l.takeTurns(s, a, d)
	case Concurrency:
		return l.takeSlots(s, a, d)
	}
	return true
}

// room is how many of what a wants l alone would admit.
func (l *Limit) room(s *State, a *ask) uint64 {
	switch l.Algorithm {
	case FixedWindow:
		var v fixedView
		v.set(l, s, a.now)
		return v.room(l, a)
	case SlidingWindow, SlidingLog:
		v := l.viewRuns(s, a.now)
		return a.fit(v.left(l))
	case TokenBucket:
		var v bucketView
		v.set(l, s, a.now)
		return v.tokens(l, a)
	case LeakyBucket:
		var v bucketView
		v.set(l, s, a.now)
		return a.fit(v.places(l))
	case Concurrency:
		v := l.viewSlots(s, a)
		return v.room(l, a)
	}
	return 0
}

// give gives hits back to l; a tells the time and the owner, and window where they were spent, or 0.
func (l *Limit) give(s *State, a *ask, hits uint64, window Micros) Decision {
	switch l.Algorithm {
	case FixedWindow:
		return l.giveFixed(s, a.now, hits, window)
	case SlidingWindow, SlidingLog:
		return l.giveRuns(s, a.now, hits)
	case TokenBucket:
		return l.giveTokens(s, a.now, hits)
	case LeakyBucket:
		return l.giveTurns(s, a.now)
	case Concurrency:
		return l.giveSlots(s, a, hits)
	}
	return Decision{}
}

// left is what remains of limit after used.
func left(limit, used uint64) uint64 {
	if used >= limit {
		return 0
	}
	return limit - used
}

// until is the time from now to then, or 0 where then has passed.
func until(then, now Micros) time.Duration {
	return time.Duration(max(then-now, 0)) * time.Microsecond
}
