package enginetest

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// fixed is the state of a fixed window.
type fixed struct {
	start, end   engine.Micros
	count        uint64
	begun, moved bool
}

func (f fixed) at(l *engine.Limit, now engine.Micros, seen bool, w windows) fixed {
	if seen && f.start <= now {
		f.begun, f.moved = true, false
		return f
	}
	f.begun = seen || l.Align == engine.AlignClock
	f.moved = seen
	switch {
	case l.Calendar != nil:
		f.start, f.end = w.at(l.Calendar, now)
		return f
	case l.Align == engine.AlignClock:
		windows := new(big.Int).Div(big.NewInt(int64(now)), big.NewInt(int64(l.Window)))
		f.start = engine.Micros(windows.Int64()) * l.Window
	default:
		f.start = now
	}
	f.end = f.start + l.Window
	return f
}

func (f *fixed) add(hits uint64) {
	f.count = min(f.count+hits, engine.MaxHits)
	f.begun = true
}

// give refunds hits, unless the count has reached its maximum and may have lost hits.
func (f *fixed) give(hits uint64) {
	if f.count < engine.MaxHits {
		f.count = minus(f.count, hits)
	}
}

// hit holds the hits of one take.
type hit struct {
	at engine.Micros
	n  uint64
}

// hits holds the hits of a sliding window or a log, in order of arrival. Hits that arrive at the same time are one entry.
type hits struct {
	all     []hit
	live    []hit         // hits that count for the limit of the last update
	longest engine.Micros // longest window of the limits that took from it
	most    uint64        // largest number of hits of these limits
}

// at returns h at now for l, without hits that count for no limit that took from it.
func (h hits) at(l *engine.Limit, now engine.Micros) hits {
	after := hits{longest: max(l.Window, h.longest), most: max(l.Hits, h.most)}
	kept := *l
	if l.Algorithm == engine.SlidingLog {
		kept.Window = after.longest
	}
	for _, x := range h.all {
		switch {
		case len(after.all) == 0 && !counts(&kept, x.at, now):
		case x.at > now:
			after = after.add(now, x.n)
		default:
			after.all = append(after.all, x)
		}
	}
	after = after.trim(l)
	after.live = nil
	for _, x := range after.all {
		if counts(l, x.at, now) {
			after.live = append(after.live, x)
		}
	}
	return after
}

// trim drops hits of a log that precede the last 2·most hits, because a count is at most twice the limit.
func (h hits) trim(l *engine.Limit) hits {
	for l.Algorithm == engine.SlidingLog && len(h.all) > 0 && total(h.all[1:]) >= 2*h.most {
		h.all = h.all[1:]
	}
	return h
}

// until returns the time from which no hit counts for any limit.
func (h hits) until(l *engine.Limit) engine.Micros {
	if len(h.all) == 0 {
		return 0
	}
	if l.Algorithm == engine.SlidingLog {
		return h.all[len(h.all)-1].at + h.longest
	}
	return h.whole(l)
}

// counts reports whether a hit counts now.
func counts(l *engine.Limit, at, now engine.Micros) bool {
	if l.Algorithm == engine.SlidingLog {
		return now-at < l.Window
	}
	return cell(l, now)-cell(l, at) <= int64(l.Precision)
}

// cell returns the number of the sub-window that contains t.
func cell(l *engine.Limit, t engine.Micros) int64 {
	length := big.NewRat(int64(l.Window), int64(l.Precision))
	return floor(length.Quo(new(big.Rat).SetInt64(int64(t)), length))
}

// whole returns the time from which no hit counts for l.
func (h hits) whole(l *engine.Limit) engine.Micros {
	if len(h.live) == 0 {
		return 0
	}
	last := h.live[len(h.live)-1].at
	return last + search(2*l.Window+1, func(after engine.Micros) bool { return !counts(l, last, last+after) })
}

func total(all []hit) (n uint64) {
	for _, x := range all {
		n += x.n
	}
	return n
}

func (h hits) total() uint64 { return total(h.live) }

func (h hits) left(l *engine.Limit) uint64 { return minus(l.Hits, h.total()) }

// add adds n hits.
func (h hits) add(now engine.Micros, n uint64) hits {
	h.all, h.live = addHits(h.all, now, n), addHits(h.live, now, n)
	return h
}

func addHits(all []hit, now engine.Micros, n uint64) []hit {
	all = slices.Clone(all)
	if last := len(all) - 1; last >= 0 && all[last].at == now {
		all[last].n += n
		return all
	}
	return append(all, hit{now, n})
}

// give removes the n oldest hits that count.
func (h hits) give(n uint64) hits {
	older := len(h.all) - len(h.live)
	live := slices.Clone(h.live)
	for len(live) > 0 && live[0].n <= n {
		n -= live[0].n
		live = live[1:]
	}
	if len(live) > 0 {
		live[0].n -= n
	}
	h.all, h.live = append(slices.Clone(h.all[:older]), live...), live
	return h
}

// slot is an occupied slot.
type slot struct {
	taken, end engine.Micros
	owner      string
}

// slots holds the occupied slots at the latest known time: of a take, or of the end of a slot.
type slots struct {
	all []slot
	at  engine.Micros
}

// asOf returns s at now. If the clock went back, all times move back with it.
func (s slots) asOf(now engine.Micros) slots {
	moved := max(0, s.at-now)
	after := slots{at: s.at - moved}
	for _, x := range s.all {
		x.taken, x.end = x.taken-moved, x.end-moved
		if now < x.end {
			after.all = append(after.all, x)
		} else {
			after.at = max(after.at, x.end)
		}
	}
	return after.orNone()
}

// orNone returns s, or the zero value if no slot is occupied.
func (s slots) orNone() slots {
	if len(s.all) == 0 {
		return slots{}
	}
	return s
}

func (s slots) whole() engine.Micros {
	end := engine.Micros(0)
	for _, x := range s.all {
		end = max(end, x.end)
	}
	return end
}

// others returns the number of slots that owner does not hold. If owner is empty, that is all of them.
func (s slots) others(owner string) (n uint64) {
	for _, x := range s.all {
		if owner == "" || x.owner != owner {
			n++
		}
	}
	return n
}

// own returns the number of slots that owner holds.
func (s slots) own(owner string) uint64 { return uint64(len(s.all)) - s.others(owner) }

// take takes n slots. An owner then holds at least n slots, none of which ends before end.
func (s slots) take(n uint64, owner string, now, end engine.Micros) (after slots, renewed uint64) {
	own := s.own(owner)
	after = slots{all: slices.Clone(s.all), at: now}
	for i := range after.all {
		if x := &after.all[i]; owner != "" && x.owner == owner {
			end = max(end, x.end) // all slots of an owner end at the same time
			x.taken, x.end = now, end
		}
	}
	for range minus(n, own) {
		after.all = append(after.all, slot{now, end, owner})
	}
	return after, min(n, own)
}

// give releases n slots of an owner or, without one, n ownerless slots, starting with those that end first.
func (s slots) give(n uint64, owner string) slots {
	all := slices.Clone(s.all)
	slices.SortStableFunc(all, func(a, b slot) int { return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.taken, b.taken)) })
	s.all = slices.DeleteFunc(all, func(x slot) bool {
		if x.owner != owner || n == 0 {
			return false
		}
		n--
		return true
	})
	return s.orNone()
}
