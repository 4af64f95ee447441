package engine

// Concurrency counts slots held at the same time: a cost of n takes n slots, refunding n releases them, and a slot
// that is not released is free again after the window. Slots with an owner belong only to that owner: a take with cost
// n means that the owner holds at least n slots, and renews all of its slots.
//
// Slots have a clock of their own, which does not go back: it is ahead of the caller's by State.full, and where that one
// went back, it goes on from the last time that the state knows of, which is State.at. So slots are held for as long as
// they were to be held then, and moving them takes no walk through them.

// slotsView is the state of a concurrency limit as seen at a given time.
type slotsView struct {
	*slots

	now  Micros // by the clock of the slots
	dead uint64 // slots that have ended, which come first
	held uint64 // slots that have not
	mine index  // the caller's group, if it has one that has not ended
	own  uint64 // slots of the caller
}

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

// left returns how many slots the caller may hold in all, including those it holds already.
func (v *slotsView) left(l *Limit) uint64 { return left(l.Hits, v.held-v.own) }

// room returns how many of the takes that a wants are admitted. An owner that takes again asks for the slots it already
// has, and keeps them even if the limit has fallen below what is held.
func (v *slotsView) room(l *Limit, a *ask) uint64 {
	free := v.left(l)
	if a.owner != "" && (a.cost <= free || a.cost <= v.own && l.Hits > 0) {
		return a.want
	}
	return a.fit(free)
}

// whole returns when the last slot is free.
func (v *slotsView) whole() Micros {
	if v.held == 0 {
		return v.now
	}
	return v.last()
}

// last returns when the last slot of all ends. There must be one.
func (s *slots) last() Micros { return s.at(s.outermost(byEnd, s.roots[byEnd], 1)).end }

// freed returns when n slots that are not the caller's are free. There must be that many.
func (v *slotsView) freed(n uint64) Micros {
	if n == 0 {
		return 0
	}
	i := v.nth(v.dead + n)
	if v.mine > 0 && (i == 0 || !v.less(byEnd, i, v.mine)) {
		i = v.nth(v.dead + n + v.own)
	}
	if i == 0 {
		return v.whole()
	}
	return v.at(i).end
}

// settleSlots drops from s what has ended, and takes note of how far the clock went back.
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

// hold gives the caller n more slots that end at the given time and, if it is an owner, renews those that it has. It
// never shortens them.
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
	d.ResetAfter = until(v.whole(), v.now)
	if rejects && a.cost <= l.Hits {
		d.RetryAfter = until(v.freed(left(v.held-v.own+a.cost, l.Hits)), v.now)
	}
	return rejects
}

// giveSlots releases n slots of the owner or, without one, the n slots without an owner that end first.
func (l *Limit) giveSlots(s *State, a *ask, n uint64) Decision {
	if a.now < s.expires {
		l.settleSlots(s, a)
		release(s, a.owner, n)
	}
	v := l.viewSlots(s, a)
	return Decision{Left: v.left(l), ResetAfter: until(v.whole(), v.now)}
}

// release removes up to n slots of an owner or, without one, of those without an owner that end first.
func release(s *State, owner string, n uint64) {
	if s.more == nil {
		return
	}
	q := &s.more.slots
	for n > 0 {
		i := q.first(byOwner) // one without an owner, if there is any
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
