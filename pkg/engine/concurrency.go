package engine

import (
	"cmp"
	"slices"
	"strings"
)

// Concurrency counts slots held at the same time: a cost of n takes n slots, giving back n releases them, and a slot
// that nobody releases is free again after the window. Slots with an owner belong to that owner alone: a take with cost
// n means that the owner holds at least n slots, and renews all of its slots.

// holder is a group of slots that were taken together, or that have the same owner.
type holder struct {
	taken Micros // or renewed
	end   Micros
	n     uint64
	owner string // empty for slots without an owner
}

// before orders holders: the first to end first.
func (h holder) before(g holder) int {
	return cmp.Or(cmp.Compare(h.end, g.end), cmp.Compare(h.taken, g.taken))
}

// slotsView is the state of a concurrency limit as seen at a given time.
type slotsView struct {
	dead    int      // how many holders have ended
	holders []holder // those that have not, in order
	held    uint64   // slots of holders
	mine    int      // index of the caller's record in holders, or −1
	own     uint64   // slots of the caller
}

func (l *Limit) viewSlots(s *State, a *ask) slotsView {
	v := slotsView{mine: -1}
	if a.now >= s.expires {
		return v
	}
	v.holders, v.held = s.more.holders.live(), s.n
	if s.at > a.now {
		v.holders = slices.Clone(v.holders)
		shift(v.holders, a.now)
	}
	for len(v.holders) > 0 && a.now >= v.holders[0].end {
		v.held -= v.holders[0].n
		v.holders = v.holders[1:]
		v.dead++
	}
	if a.owner != "" {
		v.mine = slices.IndexFunc(v.holders, func(h holder) bool { return h.owner == a.owner })
	}
	if v.mine >= 0 {
		v.own = v.holders[v.mine].n
	}
	return v
}

// shift makes slots that were taken in the future, before the clock went back, as if they had been taken now.
func shift(holders []holder, now Micros) {
	for i := range holders {
		if h := &holders[i]; h.taken > now {
			h.end -= h.taken - now
			h.taken = now
		}
	}
	slices.SortStableFunc(holders, holder.before)
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
	if len(v.holders) == 0 {
		return 0
	}
	return v.holders[len(v.holders)-1].end
}

// free returns when n slots that are not the caller's are free.
func (v *slotsView) free(n uint64) Micros {
	end := Micros(0)
	for i, h := range v.holders {
		if n == 0 {
			break
		}
		if i == v.mine {
			continue
		}
		end = h.end
		n -= min(n, h.n)
	}
	return end
}

// settleSlots drops from s what has ended, and moves what is from the future to now.
func (l *Limit) settleSlots(s *State, a *ask) {
	v := l.viewSlots(s, a)
	if len(v.holders) == 0 {
		*s = State{}
		return
	}
	s.n, s.expires = v.held, v.whole()
	q := &s.more.holders
	if s.at > a.now {
		copy(q.live(), v.holders)
		q.cut(len(v.holders))
		s.at = a.now
		return
	}
	q.drop(v.dead)
}

// hold gives n more slots to the caller and, if it is an owner, renews those that it has. It never shortens them.
func (v *slotsView) hold(s *State, h holder) {
	if s.more == nil {
		s.more = new(more)
	}
	q := &s.more.holders
	s.n += h.n
	s.at = max(s.at, h.taken)
	if v.mine >= 0 {
		mine := v.holders[v.mine]
		h.n, h.end, h.owner = h.n+mine.n, max(h.end, mine.end), mine.owner
		q.delete(v.mine, v.mine+1)
	} else {
		h.owner = strings.Clone(h.owner)
	}
	s.expires = max(s.expires, h.end)
	at, _ := slices.BinarySearchFunc(q.live(), h, func(x, h holder) int { return cmp.Or(x.before(h), -1) })
	if at > 0 && h.owner == "" {
		if last := &q.live()[at-1]; last.owner == "" && last.end == h.end && last.taken == h.taken {
			last.n += h.n
			return
		}
	}
	q.insert(at, h)
}

func (l *Limit) takeSlots(s *State, a *ask, d *Decision) (refuses bool) {
	if a.write {
		l.settleSlots(s, a)
	}
	v := l.viewSlots(s, a)
	d.Left = v.left(l)
	d.Admitted, refuses = a.judge(v.room(l, a))
	if a.write && d.Admitted > 0 {
		n := Times(d.Admitted, a.cost)
		if a.owner != "" {
			n = left(a.cost, v.own)
			d.Renewed = a.cost - n
		}
		v.hold(s, holder{a.now, a.now + l.Window, n, a.owner})
		v = l.viewSlots(s, a)
	}
	d.ResetAfter = until(v.whole(), a.now)
	switch {
	case refuses && a.cost > l.Hits:
		d.RetryAfter = d.ResetAfter
	case refuses:
		d.RetryAfter = until(v.free(left(v.held-v.own+a.cost, l.Hits)), a.now)
	}
	return refuses
}

// giveSlots releases n slots of the owner or, without one, the n slots without an owner that end first.
func (l *Limit) giveSlots(s *State, a *ask, n uint64) Decision {
	if a.now < s.expires {
		l.settleSlots(s, a)
		release(s, a.owner, n)
	}
	v := l.viewSlots(s, a)
	return Decision{Left: v.left(l), ResetAfter: until(v.whole(), a.now)}
}

// release removes up to n slots from the first records of owner.
func release(s *State, owner string, n uint64) {
	if s.more == nil {
		return
	}
	q := &s.more.holders
	q.filter(func(h *holder) bool {
		if h.owner == owner {
			freed := min(n, h.n)
			n -= freed
			s.n -= freed
			h.n -= freed
		}
		return h.n > 0
	})
	if q.len() == 0 {
		*s = State{}
		return
	}
	s.expires = q.last().end
}
