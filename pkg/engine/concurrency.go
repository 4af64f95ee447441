package engine

import (
	"slices"
	"strings"
)

// Concurrency counts slots held at the same time: a cost of n takes n slots, giving back n releases them, and a slot
// that nobody releases is free again after the window. Slots with an owner belong to that owner alone: a take with cost
// n means that the owner holds at least n slots, and renews all of its slots.

// holder is a group of slots with the same owner and the same end.
type holder struct {
	end   Micros
	n     uint64
	owner string // empty for slots without an owner
}

// slotsView is the state of a concurrency limit as seen at a given time.
type slotsView struct {
	dead    int      // how many holders have ended
	holders []holder // those that have not, the first to end first
	held    uint64   // slots of holders
	mine    int      // index of the caller's record in holders, or −1
	own     uint64   // slots of the caller
	end     Micros   // when slots taken now end; no slot ends later
}

func (l *Limit) viewSlots(s *State, a *ask) slotsView {
	v := slotsView{mine: -1, end: a.now + l.Window}
	if a.now >= s.expires {
		return v
	}
	v.holders, v.held = s.more.holders.live(), s.n
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

// future reports whether some slots end later than slots taken now, because the clock went back.
func (v *slotsView) future() bool {
	return len(v.holders) > 0 && v.holders[len(v.holders)-1].end > v.end
}

// whole returns when the last slot is free.
func (v *slotsView) whole() Micros {
	if len(v.holders) == 0 {
		return 0
	}
	return min(v.holders[len(v.holders)-1].end, v.end)
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
		end = min(h.end, v.end)
		n -= min(n, h.n)
	}
	return end
}

// settleSlots drops from s what has ended, and shortens what ends later than a window from now. Afterwards the ends are
// in order.
func (l *Limit) settleSlots(s *State, a *ask) {
	v := l.viewSlots(s, a)
	if len(v.holders) == 0 {
		*s = State{}
		return
	}
	s.n, s.expires = v.held, v.whole()
	s.more.holders.drop(v.dead)
	for i := s.more.holders.len() - 1; i >= 0 && s.more.holders.live()[i].end > v.end; i-- {
		s.more.holders.live()[i].end = v.end
	}
}

// hold gives n more slots to the caller and, if it is an owner, renews those that it has.
func (v *slotsView) hold(s *State, n uint64, owner string) {
	if s.more == nil {
		s.more = new(more)
	}
	s.n += n
	s.expires = v.end
	q := &s.more.holders
	switch {
	case v.mine >= 0:
		owner = v.holders[v.mine].owner
		q.remove(v.mine)
		q.push(holder{v.end, v.own + n, owner})
	case owner == "" && q.len() > 0 && q.last().owner == "" && q.last().end == v.end:
		q.last().n += n
	default:
		q.push(holder{v.end, n, strings.Clone(owner)})
	}
}

func (l *Limit) takeSlots(s *State, a *ask, d *Decision) (refuses bool) {
	v := l.viewSlots(s, a)
	if a.write || v.future() {
		l.settleSlots(s, a)
		v = l.viewSlots(s, a)
	}
	d.Left = v.left(l)
	d.Admitted, refuses = a.judge(v.room(l, a))
	if a.write && d.Admitted > 0 {
		n := Times(d.Admitted, a.cost)
		if a.owner != "" {
			n = left(a.cost, v.own)
			d.Renewed = a.cost - n
		}
		v.hold(s, n, a.owner)
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

// giveSlots releases n slots of the owner or, without one, the n oldest slots that have no owner.
func (l *Limit) giveSlots(s *State, a *ask, n uint64) Decision {
	if a.now < s.expires {
		l.settleSlots(s, a)
		release(s, a.owner, n)
	}
	v := l.viewSlots(s, a)
	return Decision{Left: v.left(l), ResetAfter: until(v.whole(), a.now)}
}

// release removes up to n slots from the oldest records of owner.
func release(s *State, owner string, n uint64) {
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
