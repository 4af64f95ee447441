package shares

import "math"

// account is what was debited from the store, and what became of it.
//
// In fast mode paid covers the shares until the next answer; it is debited as time passes. Until its report, the share of a holder is
// in its escrow. In strict mode paid covers whatever holders may still admit; see [Bucket.promised]. It is negative if more was used
// than the store has granted: that is asked for again, and less is handed out.
type account struct {
	left  float64 // hits in the store, at the last answer
	at    Micros  // of the last answer
	paid  float64 // hits that were debited and not used
	start Micros  // of the window, or 0
	ends  Micros  // of the window, or 0 if there is none or it is not known

	// In fast mode.
	escrow    float64 // of all holders
	returns   float64 // of that, what reports may return at most
	funded    float64 // hits per second that were paid for, where the store has no overdraft
	wanted    float64 // hits per second to pay for
	gone      leavers
	legacy    float64 // of their hits per second, what this replica pays for in the place of others
	inherited Micros  // up to this time

	// In strict mode.
	owed  float64  // hits of dead replicas that are to be debited in this window
	heirs []string // the dead replicas that owed is about, or was
}

// Ask is a request to the store: in one step, to debit Hits, or as many as are left, or to return some, and to exchange rows with
// the other replicas; see the package comment.
type Ask struct {
	Hits   uint64 // beyond what is left, if the limit has an overdraft
	Return uint64 // that were debited before, in the same window
	Row    Row
}

// Answer is what the store answered.
type Answer struct {
	Granted uint64  // of Hits
	Left    float64 // after that; negative if more were debited than there were
	Ends    Micros  // of the window that granted them, by the caller's clock and not later than by the store's; 0 for a bucket
	Asked   uint64  // hits that other callers have asked for at this replica since the last answer
	Rows    []Row   // of all replicas, or nil if there is only one
}

// capacity returns the hits per second that may be handed out by all replicas together.
func (b *Bucket) capacity(now Micros) float64 {
	if b.Mode == Strict {
		return max(0, b.strictCapacity(now))
	}
	return b.fastCapacity(now)
}

// need returns what to ask the store for.
func (b *Bucket) need(now Micros) Ask {
	if b.Mode == Fast {
		b.inheritFast(now)
		return b.needFast(now)
	}
	return b.needStrict(now)
}

// receive adds the answer to a question. It returns false if the window that granted hits is over.
func (b *Bucket) receive(now Micros, a *Answer) bool {
	ends := Micros(0)
	if a.Ends != 0 {
		if ends = b.clock.inside(a.Ends); ends <= now {
			b.due = now + coalesce
			return false
		}
		if b.ends > 0 && ends-b.ends > second { // the store has gone on to the next window before this clock has
			b.turn(now)
		}
	}
	span := seconds(now - b.at)
	if b.at > 0 && span > seconds(coalesce) {
		b.callers, _ = b.callers.observe(float64(a.Asked)/span, span)
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

// turn begins a new window at a time. All that was leased is void, and what was promised beyond it is owed.
func (b *Bucket) turn(start Micros) {
	for _, h := range b.holders {
		h.carry(start, h.tokens+h.hits(max(h.heard, b.start), start))
	}
	b.account = account{left: float64(b.Limit.Hits), at: start, start: start, funded: math.Inf(1)}
	b.stray.room, b.stray.at = 0, start
	b.due, b.paused = min(b.due, start), 0 // before others take what is promised in it
}

// settle replaces what was presumed of h since its last report by what it reports. Nothing is credited if reports are
// missing: what they would have said is lost.
func (b *Bucket) settle(h *holder, now Micros, allowed float64, complete, saturated bool) {
	if b.Mode == Fast {
		b.settleFast(h, now, allowed, complete, saturated)
		return
	}
	most := h.tokens + h.hits(max(h.heard, b.start), now)
	if !complete {
		allowed = max(allowed, most)
		h.lose()
	} else if h.heard < b.start {
		allowed = min(allowed, most)
	}
	b.paid -= allowed
	h.replace(now - b.Delivery) // this report was sent after that had arrived
	h.carry(now, most-allowed)
	h.raised, h.fell = 0, false
	h.unpaid = h.unpaid && b.failed != 0
}
