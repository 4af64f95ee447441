package nearcache

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// This file is the protocol of leases. Each step is a function from (lease, now, …) to (lease, …), so that model_test.go can try
// every order of steps and of message faults.
//
// The protocol is sound because the store debits hits before they become a lease. From then on each hit is in one place: it is
// spent, held, or on its way back, once. No hit is spent on credit. So a crash, a hang or a lost message can only leave hits
// unused, and without those no hit is.

// grant is a number of hits that the store has debited and that may be spent here. The zero grant is empty.
type grant struct {
	left         uint64        // hits not spent yet
	window       int64         // start of their fixed window by the store's clock, in µs; 0 if there is none
	ends         engine.Micros // when they may no longer be spent, by this replica's clock
	resetsAt     engine.Micros // earliest end of the window, or earliest time at which the bucket is full, by this replica's clock
	windowOverBy engine.Micros // latest end of the window, by this replica's clock
	resets       uint32        // known resets of the key when the hits were asked for; see [resets]
}

// lease is the hits of one counter that a replica holds.
type lease struct {
	held    grant
	asked   uint32 // number of the refill in progress; 0 if there is none
	refills uint32 // number of the last refill
}

// newGrant returns the grant for hits of the store's answer d. The store was asked at the time at or later, and the answer came
// at the time came. The grant ends after ttl or with its window, whichever is first, with a margin for a clock that loses 200
// ppm and is 1 ms slow.
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

// windowOver reports whether the window of g has ended, so that its hits cannot be refunded.
func (g grant) windowOver(now engine.Micros) bool { return g.window != 0 && now >= g.windowOverBy }

// ask begins a refill. None may be in progress. Its number is in asked.
func (l lease) ask() lease {
	l.refills = max(l.refills+1, 1)
	l.asked = l.refills
	return l
}

// receive adds the grant g of a refill. It returns the hits to refund: g if the lease has ended since the refill began, or hits
// of an earlier window. Hits of the same window last as long as the new ones: the store has debited both from it.
func (l lease) receive(refill uint32, g grant) (next lease, stale grant) {
	switch {
	case l.asked != refill:
		return l, g
	case l.held.window != g.window:
		stale = l.held
	default:
		g.left += l.held.left
	}
	l.held, l.asked = g, 0
	return l, stale
}

// giveUp ends a refill without hits. If they come nevertheless, receive returns them.
func (l lease) giveUp(refill uint32) lease {
	if l.asked == refill {
		l.asked = 0
	}
	return l
}

// spend spends hits, if enough are held.
func (l lease) spend(hits uint64, now engine.Micros) (lease, bool) {
	if hits > l.has(now) {
		return l, false
	}
	l.held.left -= hits
	return l, true
}

// expire removes and returns the hits that have ended.
func (l lease) expire(now engine.Micros) (lease, grant) {
	if l.held.live(now) {
		return l, grant{}
	}
	return l.empty()
}

// empty removes and returns all hits.
func (l lease) empty() (lease, grant) {
	unspent := l.held
	l.held = grant{}
	return l, unspent
}

// end removes and returns all hits, and gives up the refill in progress.
func (l lease) end() (lease, grant) {
	l.asked = 0
	return l.empty()
}

// has returns the number of hits that may be spent.
func (l lease) has(now engine.Micros) uint64 {
	if !l.held.live(now) {
		return 0
	}
	return l.held.left
}

// subtract returns n − m, but at least 0.
func subtract(n, m uint64) uint64 { return n - min(n, m) }

// The size of a lease. A replica asks for half of what it may keep, because it knows only the hits left at the last answer. If
// others have taken more than half of those since, it refunds the surplus at once.
const (
	percent   = 100 // one part in this many of the limit, or of the burst
	keepShare = 16  // one part in this many of the hits left
	askShare  = 2 * keepShare
	minLease  = 2 // requests
)

// maxLease returns the largest lease that a rule allows, in hits. 0 means none.
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

// refillSize returns the number of hits to ask for: a multiple of cost, at most most, at most a share of the left hits, and at
// most lasts, the hits expected until the next refill. 0 means no refill.
func refillSize(most, left, lasts, cost uint64) uint64 {
	hits := min(most, left/askShare, lasts)
	hits -= hits % cost
	if hits < minLease || hits < minLease*cost {
		return 0
	}
	return hits
}

// keepable returns how many of a refill's hits may be kept if left hits were left before it. The rest is refunded.
func keepable(hits, left uint64) uint64 {
	if hits = min(hits, left/keepShare); hits < minLease {
		return 0
	}
	return hits
}
