package enginetest

import (
	"math/big"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// fixed is a fixed window.
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

func (f *fixed) left(l *engine.Limit) uint64 { return minus(l.Hits, f.count) }

func (f *fixed) add(hits uint64) {
	f.count = min(f.count+hits, engine.MaxHits)
	f.begun = true
}

// hit is the hits of one take.
type hit struct {
	at engine.Micros
	n  uint64
}

// hits are all hits that count, in the order in which they came.
type hits []hit

func (h hits) at(l *engine.Limit, now engine.Micros) hits {
	var live hits
	for _, x := range h {
		if counts(l, x.at, now) {
			live = append(live, hit{min(x.at, now), x.n})
		}
	}
	return live
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

// whole returns when no hit counts any more.
func (h hits) whole(l *engine.Limit) engine.Micros {
	if len(h) == 0 {
		return 0
	}
	last := h[len(h)-1].at
	return last + search(2*l.Window+1, func(after engine.Micros) bool { return !counts(l, last, last+after) })
}

// after reports whether the last hit was at a time after now, as far as the algorithm distinguishes times.
func (h hits) after(l *engine.Limit, now engine.Micros) bool {
	if len(h) == 0 {
		return false
	}
	last := h[len(h)-1].at
	return last > now && (l.Algorithm == engine.SlidingLog || cell(l, last) > cell(l, now))
}

func (h hits) total() (n uint64) {
	for _, x := range h {
		n += x.n
	}
	return n
}

func (h hits) left(l *engine.Limit) uint64 { return minus(l.Hits, h.total()) }

func (h hits) add(now engine.Micros, n uint64) hits { return append(slices.Clip(h), hit{now, n}) }

// give removes the n oldest hits.
func (h hits) give(n uint64) hits {
	h = slices.Clone(h)
	for len(h) > 0 && h[0].n <= n {
		n -= h[0].n
		h = h[1:]
	}
	if len(h) > 0 {
		h[0].n -= n
	}
	return h
}

// slot is a slot in use.
type slot struct {
	end   engine.Micros
	owner string
}

// slots are the slots in use.
type slots []slot

func (s slots) at(l *engine.Limit, now engine.Micros) slots {
	var live slots
	for _, x := range s {
		if now < x.end {
			live = append(live, slot{min(x.end, now+l.Window), x.owner})
		}
	}
	return live
}

func (s slots) whole() engine.Micros {
	end := engine.Micros(0)
	for _, x := range s {
		end = max(end, x.end)
	}
	return end
}

// others returns how many slots are held by others than owner; if owner is empty, all of them are.
func (s slots) others(owner string) (n uint64) {
	for _, x := range s {
		if owner == "" || x.owner != owner {
			n++
		}
	}
	return n
}

// take takes n slots. If there is an owner, it holds at least n slots afterwards, and all of its slots end at end.
func (s slots) take(n uint64, owner string, end engine.Micros) (after slots, renewed uint64) {
	own := uint64(len(s)) - s.others(owner)
	after = slices.Clone(s)
	for i := range after {
		if owner != "" && after[i].owner == owner {
			after[i].end = end
		}
	}
	for range minus(n, own) {
		after = append(after, slot{end, owner})
	}
	return after, min(n, own)
}

// give releases n slots of an owner, or n without an owner, beginning with those that end first.
func (s slots) give(n uint64, owner string) slots {
	s = slices.Clone(s)
	slices.SortStableFunc(s, func(a, b slot) int { return int(a.end - b.end) })
	return slices.DeleteFunc(s, func(x slot) bool {
		if x.owner != owner || n == 0 {
			return false
		}
		n--
		return true
	})
}
