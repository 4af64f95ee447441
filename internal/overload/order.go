package overload

import (
	"math/bits"
	"slices"
	"time"
)

const (
	retry = 5 * time.Second // after which it is seen whether there is time for all, if calls come in order
	few   = 8               // one dismissed call for more than so many that go on
)

// proceed has as many go on as there is room for: those of domains that take less than their share first, and of them the newest, which
// have the most time, but in place of those in order as many of the oldest that are, of callers about as patient. It returns how many they
// are.
func (l *line) proceed(now time.Time, room int) (turns int) {
	for _, under := range []bool{true, false} {
		goes := func(p *place) bool { return p != nil && (!under || l.gate.shares.under(p.Domain)) }
		free, later, instead := room-l.working, 0, [kinds]int{} // how many of the oldest, in all and by the patience of their callers
		for i := len(l.calls) - 1; i >= 0 && free > 0; i-- {
			p := l.calls[i]
			if !goes(p) {
				continue
			}
			free--
			if l.inOrder(p, now) {
				instead[kind(p)]++
				later++
				continue
			}
			l.calls[i] = nil
			turns++
			l.give(p, l.admit(p, now))
		}
		for i := 0; i < len(l.calls) && later > 0; i++ {
			p := l.calls[i]
			if !goes(p) || instead[kind(p)] == 0 || !l.inOrder(p, now) {
				continue
			}
			instead[kind(p)]--
			later--
			l.calls[i] = nil
			turns++
			l.give(p, l.admit(p, now))
		}
	}
	l.tidy(turns)
	return turns
}

// kinds is how many kinds of patience there are.
const kinds = 20

// kind returns the kind of p's patience: 0 if that is no more than enough, and otherwise one for about as much, so that who has a second
// does not stand behind thousands who have an hour.
func kind(p *place) int {
	return bits.Len64(uint64(max(p.patience-1, 0) / enough)) //nolint:gosec // not negative
}

// inOrder reports whether p goes on before those that came after it. All do as long as there is time for all. Otherwise those of patient
// callers do until they have waited for three quarters of what they can: where there are always newer ones, they would wait in vain.
func (l *line) inOrder(p *place, now time.Time) bool {
	if p.patience <= enough {
		return !l.rushed
	}
	return 4*l.left(p, now) >= p.patience
}

// press notes that there was no time for p in the end, although it had come with enough of it.
func (l *line) press(p *place, now time.Time) {
	l.pressed = now
	if came := p.Deadline.Add(-p.patience); !l.rushed && came.After(l.changed) {
		l.rush(true, now)
	}
}

// calm has calls go on in the order in which they came if there has been time for all of late, or for nearly all, and now and then to see
// whether there would be: where callers ask again once they are answered, those who were passed over may be all that there is no time for.
func (l *line) calm(now time.Time) {
	if !l.rushed {
		return
	}
	lasts := now.Sub(l.changed)
	switch {
	case now.Sub(l.pressed) > period,
		lasts > period && l.since.dismissed*few < l.since.went,
		lasts > retry && !l.gate.Limited():
		l.rush(false, now)
	}
}

// rush says whether the newest go first from now on.
func (l *line) rush(on bool, now time.Time) {
	l.rushed, l.changed = on, now
	l.since.went, l.since.dismissed = 0, 0
}

// excess reports whether a call is one too many: there has been a line for longer than its caller waits, and as many wait as go on
// soon, so that one more would but displace another. Those of domains that take less than their share go on before.
func (l *line) excess(p *place, now time.Time) bool {
	return l.vain >= max(l.room/2, l.room-l.working, shortLine) && l.stands(p, now) && !l.gate.shares.under(p.Domain)
}

// stands reports whether there has been a line for longer than the caller of p waits, in which there was not time for all. For one who
// has the time for many turns there is none that stands: there is time for him even where hundreds wait. Nor is there for those of a
// connection with several domains, which are read beyond the limit of calls in progress: answered at once, they would be read faster.
func (l *line) stands(p *place, now time.Time) bool {
	return p.patience <= enough && l.rushed && now.Sub(l.opened) > p.patience && (p.Client == nil || p.Client.mixed.Load() == 0)
}

// weed dismisses those that would be in excess if they came now, but for the newest, and returns how many they were. Those of patient
// callers stay.
func (l *line) weed(now time.Time) (turns int) {
	l.vain = 0
	for i, p := range slices.Backward(l.calls) {
		switch {
		case l.excess(p, now):
			l.give(p, l.dismiss(p, now))
			l.calls[i] = nil
			turns++
		case l.stands(p, now):
			l.vain++
		}
	}
	l.tidy(turns)
	return turns
}

// tidy takes those that have had their turn out of the line, if there are any.
func (l *line) tidy(turns int) {
	if turns > 0 {
		l.calls = slices.DeleteFunc(l.calls, func(p *place) bool { return p == nil })
	}
}
