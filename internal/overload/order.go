package overload

import (
	"math/bits"
	"runtime"
	"slices"
	"time"
)

const (
	retry = 5 * time.Second // after which it is tried whether there is time for all, if they go on in order
	few   = 8               // calls without time say nothing
	much  = 16              // one more for so many that go on is too much
)

// proceed has as many go on as there is room for: those of domains that take less than their share first, and of them the newest, which
// have the most time, but in place of those in order as many of the oldest that are, of callers about as patient, or one where there were
// none. It returns how many they are.
func (l *line) proceed(now time.Time, room int) (turns int) {
	goOn := func(i int) {
		p := l.calls[i]
		l.calls[i] = nil
		turns++
		l.give(p, l.admit(p, now))
	}
	for _, under := range []bool{true, false} {
		goes := func(p *place) bool { return p != nil && (!under || l.gate.shares.under(p.Domain)) }
		free := room - l.working
		if free <= 0 {
			break
		}
		var oldest [kinds]int // how many of them go on
		for i := len(l.calls) - 1; i >= 0 && free > 0; i-- {
			p := l.calls[i]
			switch {
			case !goes(p):
				continue
			case l.inOrder(p, now):
				oldest[kind(p)]++
			default:
				goOn(i)
			}
			free--
		}
		for k := range oldest {
			oldest[k] = max(oldest[k], 1)
		}
		for i, p := range l.calls {
			if goes(p) && oldest[kind(p)] > 0 && l.inOrder(p, now) {
				oldest[kind(p)]--
				goOn(i)
			}
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
	return l.left(p, now) >= p.patience/4
}

// lately is what became of calls in the last tenth of a second, or since it was last found whether there is time for all.
type lately struct {
	begun   time.Time
	went    int
	pressed int // for which there was no time in the end, although there had been
}

// press notes that there is no time for p in the end, where a decision takes so long. If it was not passed over, and had no time for a
// decision when it came, that says nothing.
func (l *line) press(p *place, now time.Time, decide time.Duration) {
	passedOver, hadTime := now.Sub(p.came) > 2*l.lap, p.Deadline.Sub(p.came) > decide+2*l.lap
	if (passedOver || hadTime) && p.came.After(l.changed) {
		l.lately.pressed++
	}
}

// judge finds whether there is time for all. While the newest go first, those that are passed over and ask again may be all that there is
// no time for, so now and then calls go on in order, whatever became of them.
func (l *line) judge(now time.Time) {
	over, pressed := now.Sub(l.lately.begun) > period, l.lately.pressed > few+l.lately.went/much
	switch {
	case !l.rushed && pressed:
		l.found(now, true)
	case l.rushed && (over && !pressed || now.Sub(l.changed) > retry):
		l.found(now, false)
	case over:
		l.lately = lately{begun: now}
	}
}

// found takes down whether there is not time for all.
func (l *line) found(now time.Time, rushed bool) {
	l.rushed, l.changed, l.lately = rushed, now, lately{begun: now}
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

// count counts one that waits.
func (l *line) count(p *place, now time.Time) {
	if hastes(p.patience) {
		l.hasty++
	}
	if l.stands(p, now) {
		l.vain++
	}
}

// weed dismisses those that would be in excess if they came now, but for the newest, and returns how many they were. Those of patient
// callers stay.
func (l *line) weed(now time.Time) (turns int) {
	l.vain, l.hasty = 0, 0
	for i, p := range slices.Backward(l.calls) {
		if l.excess(p, now) {
			l.give(p, l.dismiss(p, now))
			l.calls[i] = nil
			turns++
		} else {
			l.count(p, now)
		}
	}
	l.tidy(turns)
	return turns
}

// hastes reports whether who waits for so long has little patience, but enough for an answer in a busy moment.
func hastes(patience time.Duration) bool { return haste <= patience && patience <= enough }

// tooMany reports whether policies could not answer so many calls as long as a caller of little patience waits.
func tooMany(calls int, patience time.Duration) bool {
	needed := time.Duration(calls) * answering
	return needed > patience && hastes(patience) && needed > patience*time.Duration(runtime.GOMAXPROCS(0))
}

// tidy takes those that have had their turn out of the line, if there are any.
func (l *line) tidy(turns int) {
	if turns > 0 {
		l.calls = slices.DeleteFunc(l.calls, func(p *place) bool { return p == nil })
	}
}

// flow is how many calls go on.
type flow struct {
	begun time.Time
	calls int     // since then
	rate  float64 // in a second, of late: it falls more slowly than it rises
}

// measure measures it anew, if that was last done a while ago.
func (f *flow) measure(now time.Time) {
	d := now.Sub(f.begun)
	switch {
	case d < starved:
		return
	case d > healed:
		f.rate = 0 // that was another surge
	}
	f.rate = max(float64(f.calls)/d.Seconds(), f.rate*7/8)
	f.begun, f.calls = now, 0
}

// lowest returns how many calls are to be let in at least: as many as may go on, or if the limit is higher those that go on in a third of the
// time that callers have. No more of them wait for longer, so with fewer nothing would be won; and after a moment in which this process did
// something else, as many come at once.
func (l *line) lowest() int {
	return max(l.room, min(int(l.flow.rate*(l.patient/3).Seconds()), int(l.gate.limit.Load())))
}
