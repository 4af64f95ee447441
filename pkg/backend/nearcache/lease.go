package nearcache

import (
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The protocol of leases, step by step. Each step is a function of (lease, now, …) to (lease, …), so that model_test.go
// can try every order of steps, and of what may happen to the messages in between.
//
// It is sound because hits are debited in the store before they become a lease, and from then on each of them is either
// spent here while the lease runs, or given back once, or lost. Nothing is ever spent on credit, so whatever dies,
// hangs or gets lost can only leave hits unused.

// grant is hits that the store has debited and that may be spent here. The zero grant is empty.
type grant struct {
	left   uint64        // hits not spent yet
	rest   uint64        // hits that the store had left after debiting these
	window int64         // start of the fixed window that they belong to, by the store's clock, in µs; 0 if there is none
	ends   engine.Micros // by this replica's clock: from then on they are not spent any more
	reset  engine.Micros // by this replica's clock: the window ends, or the bucket would be full, no earlier than this
}

// lease is what a replica holds of one counter: the hits that it is spending, those that arrived before these ran out,
// and the refill that it has asked for.
type lease struct {
	now, next grant  // spent in this order
	asked     uint32 // the number of the refill under way; 0 if there is none
	refills   uint32 // the number of the last refill
}

// granted returns the grant of hits made by the answer d to a call that began at time at. It ends after ttl or with its
// window, whichever is first, and early enough for a clock that loses 200 ppm and reads 1 ms too little.
func granted(d *engine.Decision, hits uint64, at, ttl engine.Micros) grant {
	g := grant{left: hits, rest: left(d.Left, hits), window: d.Window, reset: at + micros(d.ResetAfter)}
	if d.Window != 0 {
		ttl = min(ttl, micros(d.ResetAfter))
	}
	g.ends = at + sooner(ttl) - millisecond
	return g
}

// live reports whether hits of g may be spent.
func (g grant) live(now engine.Micros) bool { return g.left > 0 && now < g.ends }

// mayAsk reports whether a refill may be asked for: one at a time, and only for as many grants as l has room for.
func (l lease) mayAsk() bool { return l.asked == 0 && l.next.left == 0 }

// ask begins a refill, and returns its number.
func (l lease) ask() (lease, uint32) {
	l.refills = max(l.refills+1, 1)
	l.asked = l.refills
	return l, l.asked
}

// receive adds the grant of a refill. If that refill is no longer waited for, or was answered before, it returns false:
// the hits are lost.
func (l lease) receive(refill uint32, g grant) (lease, bool) {
	if refill == 0 || refill != l.asked {
		return l, false
	}
	l.asked = 0
	if l.now.left == 0 {
		l.now = g
	} else {
		l.next = g
	}
	return l, true
}

// lose ends a refill without an answer. What it may have debited is lost.
func (l lease) lose(refill uint32) lease {
	if refill == l.asked {
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
	var over [2]grant
	if l.next.left > 0 && !l.next.live(now) {
		over[1], l.next = l.next, grant{}
	}
	if l.now.left > 0 && !l.now.live(now) {
		over[0], l.now = l.now, grant{}
	}
	return l.settle(), over
}

// empty removes and returns everything unspent.
func (l lease) empty() (lease, [2]grant) {
	all := [2]grant{l.now, l.next}
	l.now, l.next = grant{}, grant{}
	return l, all
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

// left returns what remains of n after m, at least 0.
func left(n, m uint64) uint64 { return n - min(n, m) }

// How large a lease may be. A replica asks for half the share it may keep of what is left, since it knows only what was
// left at the last answer; if others have taken more than half of that since then, the surplus goes straight back.
const (
	percent   = 100 // of the limit, or the burst: one part in this many
	share     = 16  // of what is left: one part in this many
	asksShare = 2 * share
	minLease  = 2 // requests; fewer are not worth it
)

// most returns the largest lease that a rule allows for requests of the given cost, in hits; 0 means none.
func most(l *engine.Limit, rule backend.Lease, cost uint64) uint64 {
	hits := l.Hits
	if l.Algorithm == engine.TokenBucket {
		hits = min(hits, l.Burst)
	}
	switch {
	case rule == backend.LeaseAuto:
		hits /= percent
	case rule > 0:
		hits = min(hits, uint64(rule))
	default:
		return 0
	}
	if hits < minLease || hits/minLease < cost {
		return 0
	}
	return hits
}

// wants returns how many hits to ask for, as a multiple of cost, if left hits are left and lasts is about how many a
// refill should last for; 0 means none.
func wants(most, left, lasts, cost uint64) uint64 {
	hits := min(most, left/asksShare, lasts)
	hits -= hits % cost
	if hits < minLease || hits < minLease*cost {
		return 0
	}
	return hits
}

// keeps returns how many of the hits that came may be kept if left hits were left before; the rest goes back.
func keeps(hits, left uint64) uint64 {
	if hits = min(hits, left/share); hits < minLease {
		return 0
	}
	return hits
}
