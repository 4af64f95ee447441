package engine

import (
	"slices"
	"strings"
)

// Concurrency counts what is held at the same time: a cost of n takes n slots, giving n back releases them, and what
// nobody releases is free again after the window. Slots that have an owner are that owner's alone: its takes say how
// many it holds at least, and renew them all.

// holder is slots that end at the same time and have the same owner.
type holder struct {
	end   Micros
	n     uint64
	owner string // empty for slots without
}

// slotsView is what the state of a concurrency limit says at a time.
type slotsView struct {
	dead    int      // how many holders' slots have ended
	holders []holder // the others, the first to end first
	held    uint64   // slots of theirs
	mine    int      // index of the asker's record, or −1
	own     uint64   // slots of the asker's
	end     Micros   // when slots end that are taken now; none ends later
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

// left is how many slots the asker may hold in all, its own included.
func (v *slotsView) left(l *Limit) uint64 { return left(l.Hits, v.held-v.own) }

// room is how many of what a wants are admitted. Takes of one owner ask for the same slots again, and get them back even
// where the limit has fallen below what is held.
func (v *slotsView) room(l *Limit, a *ask) uint64 {
	free := v.left(l)
	if a.owner != "" && (a.cost <= free || a.cost <= v.own && l.Hits > 0) {
		return a.want
	}
	return a.fit(free)
}

// future reports whether some slots end later than those that are taken now.
func (v *slotsView) future() bool {
	return len(v.holders) > 0 && v.holders[len(v.holders)-1].end > v.end
}

// whole is when the last slot is free.
func (v *slotsView) whole() Micros {
	if len(v.holders) == 0 {
		return 0
	}
	return min(v.holders[len(v.holders)-1].end, v.end)
}

// free is when n slots of others than the asker's are free.
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

// settleSlots drops from s what has ended, and brings to the window's length from now what ends later. Then the ends are
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

// hold gives n slots more to the asker, and renews those that it has where they are its own.
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
		n := times(d.Admitted, a.cost)
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

// giveSlots releases n slots of the owner, or without one the oldest of those that have none.
func (l *Limit) giveSlots(s *State, a *ask, n uint64) Decision {
	if a.now < s.expires {
		l.settleSlots(s, a)
		release(s, a.owner, n)
	}
	v := l.viewSlots(s, a)
	return Decision{Left: v.left(l), ResetAfter: until(v.whole(), a.now)}
}

// release takes n slots, or as many as there are, from the oldest records of owner.
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
