package nearcache

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// This file implements the protocol of leases. Each step is a function from (lease, now, …) to (lease, …), so that model_test.go can try
// every order of steps and message faults.
//
// The protocol is safe because the store debits hits before they become part of a lease. From then on, each hit is in exactly one place:
// spent, held, or on its way back. So a crash, a stall or a lost message can only leave hits unused, and without such faults none are.

// grant is a number of hits debited by the store, which may be spent here. The zero grant is empty.
type grant struct {
	left         uint64        // unspent hits
	window       int64         // start of their fixed window on the store's clock, in µs; 0 if there is none
	ends         engine.Micros // time after which they must not be spent, on this replica's clock
	resetsAt     engine.Micros // earliest end of the window, or earliest time at which the bucket is full, on this replica's clock
	windowOverBy engine.Micros // latest end of the window, on this replica's clock
	resets       uint32        // count of resets when the hits were requested; see [resets]
}

// lease holds a replica's hits of one counter.
type lease struct {
	held    grant
	asked   uint32 // number of the refill in progress; 0 if there is none
	refills uint32 // number of the last refill
}

// newGrant returns the grant of hits from the store's answer d. The store was asked at the time at or later, and the answer arrived at
// the time came. The grant ends after ttl or with its window, whichever is first, minus a margin for a clock that runs 200 ppm and 1 ms
// slow.
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

// ask begins a refill, with its number in asked. No other refill may be in progress.
func (l lease) ask() lease {
	l.refills = max(l.refills+1, 1)
	l.asked = l.refills
	return l
}

// receive adds the grant g of a refill. It returns the hits to refund: g if the lease ended after the refill began, or the held hits if
// they belong to an earlier window. Held hits of the same window then last as long as the new ones, because the store debited both from
// it.
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

// giveUp ends a refill without hits. If hits arrive later, receive returns them.
func (l lease) giveUp(refill uint32) lease {
	if l.asked == refill {
		l.asked = 0
	}
	return l
}

// spend spends hits if enough are held.
func (l lease) spend(hits uint64, now engine.Micros) (lease, bool) {
	if hits > l.has(now) {
		return l, false
	}
	l.held.left -= hits
	return l, true
}

// expire removes and returns expired hits.
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

// end removes and returns all hits, and cancels the refill in progress.
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

// subtract returns n − m, at least 0.
func subtract(n, m uint64) uint64 { return n - min(n, m) }

// Size of a lease. A replica requests half of the hits that it may keep, because it only knows the hits left at the last answer. If other
// replicas have taken more than half of those since, it refunds the surplus immediately.
const (
	percent   = 100 // a lease is at most 1/percent of the limit, or of the burst
	keepShare = 16  // a replica keeps at most 1/keepShare of the hits left
	askShare  = 2 * keepShare
	minLease  = 2 // requests
)

// maxLease returns the largest lease that a rule allows, in hits, or 0 if it allows none.
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

// refillSize returns the number of hits to request: a multiple of cost, and at most most, a share of the hits left, and lasts, the hits
// expected until the next refill. 0 means no refill.
func refillSize(most, left, lasts, cost uint64) uint64 {
	hits := min(most, left/askShare, lasts)
	hits -= hits % cost
	if hits < minLease || hits < minLease*cost {
		return 0
	}
	return hits
}

// keepable returns the number of a refill's hits that may be kept, given the hits left before it. The rest is refunded.
func keepable(hits, left uint64) uint64 {
	if hits = min(hits, left/keepShare); hits < minLease {
		return 0
	}
	return hits
}
