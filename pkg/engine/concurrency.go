package engine

// Concurrency counts slots held at the same time. A cost of n takes n slots, a refund of n releases them, and a slot that is not released
// becomes free after the window. Slots with an owner belong to that owner: a take with cost n ensures that the owner holds at least n
// slots, and renews all of its slots.
//
// Slots have their own clock, which never goes back. It is ahead of the caller's clock by State.full; if the caller's clock goes back, it
// continues from State.at, the last time in the state. So slots keep their remaining time, and correcting the clock does not have to
// visit them.

// slotsView is a concurrency limit's state at a given time.
type slotsView struct {
	*slots

	now  Micros // on the slots' clock
	dead uint64 // slots that have ended; they come first
	held uint64 // slots that have not ended
	mine index  // the caller's group; 0 if it has none that has not ended
	own  uint64 // the caller's slots
}

// viewSlots returns the state at a.now.
func (l *Limit) viewSlots(s *State, a *ask) slotsView {
	if a.now >= s.expires {
		return slotsView{now: a.now}
	}
	v := slotsView{slots: &s.more.slots, now: max(a.now+s.full, s.at)}
	v.dead = v.over(v.now)
	v.held = v.all() - v.dead
	if a.owner == "" {
		return v
	}
	if mine := v.find(a.owner, 0, 0); mine > 0 && v.at(mine).end > v.now {
		v.mine, v.own = mine, uint64(v.at(mine).n)
	}
	return v
}

// left returns the number of slots that the caller may hold, including those it already holds.
func (v *slotsView) left(l *Limit) uint64 { return left(l.Hits, v.held-v.own) }

// room returns the number of takes of a that are admitted. An owner that takes again keeps the slots it already holds, even if the limit
// has fallen below the number held.
func (v *slotsView) room(l *Limit, a *ask) uint64 {
	free := v.left(l)
	if a.owner != "" && (a.cost <= free || a.cost <= v.own && l.Hits > 0) {
		return a.want
	}
	return a.fit(free)
}

// allFree returns the time at which all slots are free.
func (v *slotsView) allFree() Micros {
	if v.held == 0 {
		return v.now
	}
	return v.last()
}

// last returns the latest end of a slot. There must be one.
func (s *slots) last() Micros { return s.at(s.outermost(byEnd, s.roots[byEnd], 1)).end }

// freed returns the time at which n slots of other callers are free. There must be that many.
func (v *slotsView) freed(n uint64) Micros {
	if n == 0 {
		return 0
	}
	i := v.nth(v.dead + n)
	if v.mine > 0 && (i == 0 || !v.less(byEnd, i, v.mine)) {
		i = v.nth(v.dead + n + v.own)
	}
	if i == 0 {
		return v.allFree()
	}
	return v.at(i).end
}

// settleSlots removes the ended slots from s and updates the offset of the slots' clock.
func (l *Limit) settleSlots(s *State, a *ask) {
	v := l.viewSlots(s, a)
	if v.held == 0 {
		*s = State{}
		return
	}
	for i := v.first(byEnd); v.at(i).end <= v.now; i = v.first(byEnd) {
		s.at = max(s.at, v.at(i).end)
		v.remove(i)
	}
	s.n, s.full = v.held, v.now-a.now
	s.expires = v.last() - s.full
}

// hold gives the caller n more slots with the given end and, if it is an owner, renews those it has. It never shortens them.
func (v *slotsView) hold(s *State, a *ask, n uint64, end Micros) {
	if s.more == nil {
		s.more = new(more)
	}
	q := &s.more.slots
	s.n += n
	s.at = v.now
	if v.mine > 0 {
		end = max(end, q.at(v.mine).end)
		q.renew(v.mine, v.now, end)
		q.resize(v.mine, v.own+n)
	} else if same := q.find(a.owner, end, v.now); same > 0 && a.owner == "" {
		q.resize(same, uint64(q.at(same).n)+n)
	} else {
		q.add(group{taken: v.now, end: end, n: uint16(n), owner: a.owner})
	}
	s.expires = max(s.expires, end-s.full)
}

// takeSlots implements take for a concurrency limit.
func (l *Limit) takeSlots(s *State, a *ask, d *Decision) (rejects bool) {
	if a.write {
		l.settleSlots(s, a)
	}
	v := l.viewSlots(s, a)
	d.Left = v.left(l)
	d.Admitted, rejects = a.judge(v.room(l, a))
	if a.write && d.Admitted > 0 {
		n := Times(d.Admitted, a.cost)
		if a.owner != "" {
			n = left(a.cost, v.own)
			d.Renewed = a.cost - n
		}
		v.hold(s, a, n, v.now+l.Window)
		v = l.viewSlots(s, a)
	}
	d.ResetAfter = until(v.allFree(), v.now)
	if rejects && a.cost <= l.Hits {
		d.RetryAfter = until(v.freed(left(v.held-v.own+a.cost, l.Hits)), v.now)
	}
	return rejects
}

// giveSlots releases n slots of the owner or, without one, the n ownerless slots that end first.
func (l *Limit) giveSlots(s *State, a *ask, n uint64) Decision {
	if a.now < s.expires {
		l.settleSlots(s, a)
		release(s, a.owner, n)
	}
	v := l.viewSlots(s, a)
	return Decision{Left: v.left(l), ResetAfter: until(v.allFree(), v.now)}
}

// release removes up to n slots of an owner or, without one, the ownerless slots that end first.
func release(s *State, owner string, n uint64) {
	if s.more == nil {
		return
	}
	q := &s.more.slots
	for n > 0 {
		i := q.first(byOwner) // ownerless groups come first
		if owner != "" {
			i = q.find(owner, 0, 0)
		}
		if i == 0 || q.at(i).owner != owner {
			break
		}
		had := uint64(q.at(i).n)
		freed := min(n, had)
		n -= freed
		s.n -= freed
		if freed == had {
			q.remove(i)
		} else {
			q.resize(i, had-freed)
		}
	}
	if q.count == 0 {
		*s = State{}
		return
	}
	s.expires = q.last() - s.full
}
