package shares

import "math"

// account tracks the hits debited from the store.
//
// In fast mode, paid covers the shares until the next answer and decreases with time. Until a holder reports, the cost of its share is in
// its escrow. In strict mode, paid covers everything that holders may still admit; see [Bucket.promised]. It is negative if clients used
// more than the store has granted; the bucket then asks for the difference and hands out less.
type account struct {
	left  float64 // hits in the store at the last answer
	at    Micros  // time of the last answer
	paid  float64 // debited hits that have not been used
	start Micros  // start of the window, or 0
	ends  Micros  // end of the window, or 0 if there is none or it is unknown

	// Fast mode only.
	escrow    float64 // sum over all holders
	returns   float64 // maximum part of escrow that reports may return
	funded    float64 // hits per second that were paid for, if the store has no overdraft
	wanted    float64 // hits per second to pay for
	gone      leavers
	legacy    float64 // hits per second of their clients that this replica pays for in place of others
	inherited Micros  // time up to which legacy is paid

	// Strict mode only.
	owed  float64  // hits of failed replicas to debit in this window
	heirs []string // failed replicas included in owed, now or earlier
}

// Request is sent to the store. In one step, the store debits Hits, or as many as are left, or refunds hits, and exchanges rows with the
// other replicas; see the package comment.
type Request struct {
	Hits   uint64 // may exceed the hits left if the limit has an overdraft
	Return uint64 // hits debited earlier in the same window
	Row    Row
}

// Answer is the answer of the store.
type Answer struct {
	Granted   uint64  // of Hits
	Left      float64 // hits left afterwards; negative if overdrawn
	Ends      Micros  // end of the window that granted the hits, on the caller's clock and not later than on the store's; 0 for a bucket
	Requested uint64  // hits that other callers have requested through this replica since the last answer
	Rows      []Row   // rows of all replicas, or nil if there is only one
}

// capacity returns the hits per second that all replicas together may hand out.
func (b *Bucket) capacity(now Micros) float64 {
	if b.Mode == Strict {
		return max(0, b.strictCapacity(now))
	}
	return b.fastCapacity(now)
}

// need returns the next question to the store.
func (b *Bucket) need(now Micros) Request {
	if b.Mode == Fast {
		b.inheritFast(now)
		return b.needFast(now)
	}
	return b.needStrict(now)
}

// receive adds the answer to a question. It returns false if the window of the granted hits is over.
func (b *Bucket) receive(now Micros, a *Answer) bool {
	ends := Micros(0)
	if a.Ends != 0 {
		if ends = b.clock.inside(a.Ends); ends <= now {
			b.due = now + coalesce
			return false
		}
		if b.ends > 0 && ends-b.ends > second { // the store's clock has reached the next window first
			b.turn(now)
		}
	}
	span := seconds(now - b.at)
	if b.at > 0 && span > seconds(coalesce) {
		b.callers, _ = b.callers.observe(float64(a.Requested)/span, span)
	}
	begins := b.at == b.start
	b.left, b.at, b.ends = a.Left, now, ends
	if b.Mode == Fast {
		b.receiveFast(float64(a.Granted))
		return true
	}
	b.paid += max(0, float64(a.Granted)-b.burn)
	b.owed = max(0, b.owed-float64(a.Granted))
	if begins && b.free().hits <= -1 { // RLS callers were faster
		b.stop(now)
	}
	return true
}

// turn begins a new window at a time. Leased hits become void, and promises beyond the end of the old window must be paid for again.
func (b *Bucket) turn(start Micros) {
	for _, h := range b.holders {
		h.carry(start, h.tokens+h.hits(max(h.lastReport, b.start), start))
	}
	b.account = account{left: float64(b.Limit.Hits), at: start, start: start, funded: math.Inf(1)}
	b.stray.room, b.stray.at = 0, start
	b.due, b.paused = min(b.due, start), 0 // before others take the hits that are promised in it
}

// settle replaces the presumed usage of h since its last report by the reported usage. If reports are missing, it credits nothing,
// because their content is unknown.
func (b *Bucket) settle(h *holder, now Micros, allowed float64, complete, saturated bool) {
	if b.Mode == Fast {
		b.settleFast(h, now, allowed, complete, saturated)
		return
	}
	most := h.tokens + h.hits(max(h.lastReport, b.start), now)
	if !complete {
		allowed = max(allowed, most)
		h.lose()
	} else if h.lastReport < b.start {
		allowed = min(allowed, most)
	}
	b.paid -= allowed
	h.replace(now - b.Delivery) // the assignment had arrived before this report was sent
	h.carry(now, most-allowed)
	h.raised, h.fell = 0, false
	h.unpaid = h.unpaid && b.failed != 0
}
