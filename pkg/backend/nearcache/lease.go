package nearcache

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The protocol of leases, step by step. Each step is a function of (lease, now, …) to (lease, …), so that model_test.go
// can try every order of steps, and of what may happen to the messages in between.
//
// It is sound because hits are debited in the store before they become a lease, and from then on each of them is in one
// place: spent here, held, or on its way back, once. Nothing is ever spent on credit, so whatever dies, hangs or gets
// lost can only leave hits unused; and as long as nothing does, none are.

// grant is hits that the store has debited and that may be spent here. The zero grant is empty.
type grant struct {
	left         uint64        // hits not spent yet
	window       int64         // start of the fixed window that they belong to, by the store's clock, in µs; 0 if there is none
	ends         engine.Micros // by this replica's clock: from then on they are not spent any more
	resetsAt     engine.Micros // by this replica's clock: the window ends, or the bucket would be full, no earlier than this
	windowOverBy engine.Micros // by this replica's clock: the window has ended by then
	resets       uint32        // resets of the key that this replica knew of when it asked for them; see [resets]
}

// lease is what a replica holds of one counter: the hits that it is spending, those that arrived before these ran out,
// and the refill that it has asked for.
type lease struct {
	now, next grant  // spent in this order, and of the same window
	asked     uint32 // the number of the refill under way; 0 if there is none
	refills   uint32 // the number of the last refill
}

// flight is a refill that was asked for.
type flight struct {
	number   uint32
	answered bool // what still comes is a copy
}

// newGrant returns the grant of hits made by the answer d, which came at time came, to a call that began at time at. It
// ends after ttl or with its window, whichever is first, and early enough for a clock that loses 200 ppm and reads 1 ms
// too little.
func newGrant(d *engine.Decision, hits uint64, at, came, ttl engine.Micros) grant {
	resetAfter := micros(d.ResetAfter)
	g := grant{left: hits, window: d.Window, resetsAt: at + resetAfter, windowOverBy: came + plusDrift(resetAfter) + millisecond}
	if d.Window != 0 {
		ttl = min(ttl, resetAfter)
	}
	g.ends = at + minusDrift(ttl) - millisecond
	return g
}

// live reports whether hits of g may be spent.
func (g grant) live(now engine.Micros) bool { return g.left > 0 && now < g.ends }

// windowOver reports whether the window of g has ended, so that there is nothing to give its hits back to.
func (g grant) windowOver(now engine.Micros) bool { return g.window != 0 && now >= g.windowOverBy }

// mayAsk reports whether a refill may be asked for: one at a time, and only for as many grants as l has room for.
func (l lease) mayAsk() bool { return l.asked == 0 && l.next.left == 0 }

// ask begins a refill.
func (l lease) ask() (lease, flight) {
	l.refills = max(l.refills+1, 1)
	l.asked = l.refills
	return l, flight{number: l.refills}
}

// waitsFor reports whether l would take the answer to f.
func (l lease) waitsFor(f flight) bool { return l.asked != 0 && f.number == l.asked && !f.answered }

// receive adds the grant g, which answers the refill f. It returns what has to be refunded: g if l does not wait for f,
// or hits of the window before that of g. A copy of an answer does nothing.
func (l lease) receive(f flight, g grant) (next lease, answered flight, stale grant) {
	switch {
	case f.answered:
		return l, f, grant{}
	case !l.waitsFor(f):
		stale = g
	case l.now.left == 0:
		l.asked, l.now = 0, g
	case l.now.window != g.window:
		l.asked, l.now, stale = 0, g, l.now
	default:
		l.asked, l.next = 0, g
	}
	f.answered = true
	return l, f, stale
}

// giveUp stops waiting for f. If an answer comes all the same, its hits are refunded.
func (l lease) giveUp(f flight) lease {
	if f.number == l.asked {
		l.asked = 0
	}
	return l
}

// spend spends hits of one grant, and returns that grant as it was before.
func (l lease) spend(hits uint64, now engine.Micros) (lease, grant, bool) {
	for _, g := range [...]*grant{&l.now, &l.next} {
		if g.live(now) && g.left >= hits {
			from := *g
			g.left -= hits
			return l.settle(), from, true
		}
	}
	return l, grant{}, false
}

// settle moves next up if now is spent.
func (l lease) settle() lease {
	if l.now.left == 0 {
		l.now, l.next = l.next, grant{}
	}
	return l
}

// expire removes and returns grants that have ended unspent.
func (l lease) expire(now engine.Micros) (lease, [2]grant) {
	var unspent [2]grant
	if l.next.left > 0 && !l.next.live(now) {
		unspent[1], l.next = l.next, grant{}
	}
	if l.now.left > 0 && !l.now.live(now) {
		unspent[0], l.now = l.now, grant{}
	}
	return l.settle(), unspent
}

// empty removes and returns everything unspent.
func (l lease) empty() (lease, [2]grant) {
	unspent := [2]grant{l.now, l.next}
	l.now, l.next = grant{}, grant{}
	return l, unspent
}

// end removes and returns everything unspent, and stops waiting for a refill.
func (l lease) end() (lease, [2]grant) {
	l.asked = 0
	return l.empty()
}

// has returns how many hits may be spent.
func (l lease) has(now engine.Micros) uint64 {
	sum := uint64(0)
	for _, g := range [...]*grant{&l.now, &l.next} {
		if g.live(now) {
			sum += g.left
		}
	}
	return sum
}

// subtract returns what remains of n after m, at least 0.
func subtract(n, m uint64) uint64 { return n - min(n, m) }

// How large a lease may be. A replica asks for half the share it may keep of what is left, since it knows only what was
// left at the last answer; if others have taken more than half of that since then, the surplus goes straight back.
const (
	percent   = 100 // of the limit, or the burst: one part in this many
	keepShare = 16  // of what is left: one part in this many
	askShare  = 2 * keepShare
	minLease  = 2 // requests; fewer are not worth it
)

// maxLease returns the largest lease that a rule allows, in hits; 0 means none.
func maxLease(l *engine.Limit, rule backend.Lease) uint64 {
	hits := min(l.Capacity(), l.Hits)
	switch {
	case rule == backend.LeaseAuto:
		hits /= percent
	case rule > 0:
		hits = min(hits, uint64(rule))
	default:
		return 0
	}
	if hits < minLease {
		return 0
	}
	return hits
}

// refillSize returns how many hits to ask for, as a multiple of cost, if left hits are left and lasts is about how many a
// refill should last for; 0 means none.
func refillSize(most, left, lasts, cost uint64) uint64 {
	hits := min(most, left/askShare, lasts)
	hits -= hits % cost
	if hits < minLease || hits < minLease*cost {
		return 0
	}
	return hits
}

// keepable returns how many of the hits that came may be kept if left hits were left before; the rest goes back.
func keepable(hits, left uint64) uint64 {
	if hits = min(hits, left/keepShare); hits < minLease {
		return 0
	}
	return hits
}
