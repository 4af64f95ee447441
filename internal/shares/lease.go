package shares

import (
	"math"
	"slices"
)

const (
	askAhead  = 1.1 // seconds of expected use that are leased: until the next answer has come
	leaseLife = 2 * second

	// Strict mode holds if no report is older than this when it arrives.
	reportDelay = second
)

// account is what has been leased from the store, and what became of it.
//
// In fast mode paid covers the use that is expected until the next answer. It is debited as time passes, and corrected by
// each report. In strict mode it covers whatever holders may still admit; see [Bucket.promised]. It is negative if more
// was used than the store has granted: that is asked for again, and less is handed out.
type account struct {
	left  float64 // hits in the store, at the last answer
	at    Micros  // of the last answer
	paid  float64 // hits that were leased and not used
	valid Micros  // fast: until then what was paid may be used
	start Micros  // of the window, or 0
	ends  Micros  // of the window, or 0 if there is none or it is not known

	lost  float64  // fast: hits that flowed into a full bucket, of the last interval at most
	owed  float64  // strict: hits of dead replicas that are to be debited in this window
	heirs []string // the dead replicas that owed is about, or was
}

// Ask is a request to the store: in one step, to debit Hits, or as many as are left, and to exchange rows with the
// other replicas; see the package comment.
type Ask struct {
	Hits uint64
	Row  Row
}

// Answer is what the store answered.
type Answer struct {
	Granted uint64 // of Hits
	Left    uint64 // after that
	Ends    Micros // of the window that granted them, by the caller's clock and not later than by the store's; 0 for a bucket
	Rows    []Row  // of all replicas, or nil if there is only one
}

// receive adds the answer to the lease of so many hits. It returns false if the window that granted them is over.
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
	granted := float64(a.Granted)
	if b.Mode == Fast && b.Limit.Burst > 0 {
		b.forgive(now, float64(a.Left)+granted)
	}
	b.left, b.at, b.ends = float64(a.Left), now, ends
	b.paid += max(0, granted-b.burn)
	b.owed = max(0, b.owed-granted)
	if b.Mode == Fast && b.Limit.Burst > 0 { // what was leased and not used is no more than what is not in the store
		b.paid = min(b.paid, float64(b.Limit.Burst)-b.left)
	}
	b.valid = now + leaseLife
	return true
}

// forgive settles use that was reported late. A bucket in the store that is full loses what flows in; had the use been
// debited as it happened, it would not have been full. So what was lost since the last reports pays for it, though some of it
// may have been lost before the use.
func (b *Bucket) forgive(now Micros, level float64) {
	burst, rate := float64(b.Limit.Burst), b.Limit.rate()
	most := rate * seconds(max(usualInterval, now-b.at))
	switch {
	case level < burst-1:
		b.lost = 0
	case b.at == 0: // what clients used since a restart
		b.lost = rate * seconds(usualInterval)
	default:
		b.lost = min(most, b.lost+max(0, b.left+rate*seconds(now-b.at)-level))
	}
	part := min(max(0, -b.paid), b.lost/float64(1+len(b.others)))
	b.paid += part
	b.lost -= part
}

// turn begins a new window at a time. All that was leased is void, and what was promised beyond it is owed.
func (b *Bucket) turn(start Micros) {
	for _, h := range b.holders {
		h.carry(start, h.tokens+h.hits(max(h.heard, b.start), start))
	}
	b.account = account{left: float64(b.Limit.Hits), at: start, start: start}
	b.spent = false
	b.due, b.paused = min(b.due, start), 0 // before others take what is promised in it
}

// forgo bounds what a bucket owes for use that was reported. Clients can use twice what the limit has only if they lie or nothing limits
// them, and the others are not to pay for that for hours. In a window what is owed ends with it.
func (b *Bucket) forgo(now Micros) {
	since := usualInterval
	if b.at > 0 {
		since = max(since, now-b.at)
	}
	if b.Limit.Burst > 0 {
		b.paid = max(b.paid, -2*b.most(since))
	}
}

// need returns how many hits to lease.
func (b *Bucket) need(now Micros) uint64 {
	b.burn = 0
	hits := -b.paid
	if b.Mode == Strict {
		hits += b.planned(now)
		b.burn = b.surplus(now) + b.owed
	} else {
		if now > b.valid {
			b.paid = min(b.paid, 0)
		}
		for _, h := range b.holders {
			hits += h.expected(now) * askAhead
		}
	}
	return uint64(math.Ceil(max(0, hits) + b.burn))
}

// accrue debits the use that is expected of h until now.
func (b *Bucket) accrue(h *holder, now Micros) {
	used := h.expected(now) * seconds(now-h.accrued)
	h.accrued = now
	if b.Mode == Fast {
		h.unreported += used
		b.paid -= used
	}
}

// settle replaces what was presumed of h since its last report by what it reports. Nothing is credited if reports are
// missing: what they would have said is lost.
func (b *Bucket) settle(h *holder, now Micros, allowed float64, complete bool) {
	if b.Mode == Fast {
		used := allowed - h.unreported
		if !complete {
			used = max(used, 0)
		}
		b.paid -= used
		h.unreported = 0
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
}

// carry sets the tokens of h at a time at which it has at most so many. It has no more than its burst, and what it is given
// while a report is under way; messages that lower and raise the burst may be under way as well.
func (h *holder) carry(now Micros, most float64) {
	room := h.burst(now) + h.held(now)*seconds(reportDelay)
	if h.fell {
		room += h.raised
	}
	h.tokens = max(0, min(most, room))
}

// promised returns the hits that h may admit in this window and has not reported: all tokens that it may hold, and its
// rates from the last report on for as long as they may be in force. That a report took a while to arrive, and an
// assignment too, is within Delivery.
func (b *Bucket) promised(h *holder) float64 {
	if h.until() <= max(h.heard, b.start) {
		return 0
	}
	end := Micros(math.MaxInt64)
	if b.ends > 0 {
		end = b.ends
	}
	return h.tokens + h.hits(max(h.heard, b.start), end)
}

// promisedNext returns the hits that h may admit in the next window.
func (b *Bucket) promisedNext(h *holder) float64 {
	if b.ends == 0 || h.until() <= b.ends {
		return 0
	}
	next := *h
	next.carry(b.ends, h.tokens+h.hits(max(h.heard, b.start), b.ends))
	return next.tokens + h.hits(b.ends, math.MaxInt64)
}

// planned returns the hits that must be paid for so that every holder can have its target.
func (b *Bucket) planned(now Micros) (sum float64) {
	for _, h := range b.holders {
		sum += b.promised(h)
		if h.state != gone && !b.spent {
			sum += max(0, b.price(h, h.target, now).hits)
		}
	}
	return sum
}

// price is what an assignment adds to what is promised.
type price struct{ hits, next float64 }

// exceeds reports whether p adds more than is free.
func (p price) exceeds(free price) bool {
	return p.hits > max(0, free.hits) || p.next > max(0, free.next)
}

// price returns the price of sending a rate to h.
func (b *Bucket) price(h *holder, rate float64, now Micros) price {
	after := *h
	after.sent = slices.Clone(h.sent)
	_, u := b.draft(h, rate, now)
	b.take(&after, u, now)
	return price{b.promised(&after) - b.promised(h), b.promisedNext(&after) - b.promisedNext(h)}
}

// surplus returns the hits to lease and drop, in strict mode. A bucket in the store refills while hits that were leased
// from it wait to be used, so both together could exceed the burst; what would, is debited.
func (b *Bucket) surplus(now Micros) float64 {
	if b.Limit.Burst == 0 || b.at == 0 {
		return 0
	}
	waiting := b.paid
	for i := range b.others {
		waiting += b.others[i].Reserved
	}
	burst, rate := float64(b.Limit.Burst), b.Limit.rate()
	level := min(burst, b.left+rate*seconds(now-b.at)) + rate*askAhead
	if waiting <= 0 {
		return 0
	}
	return max(0, level+waiting-burst) * max(0, b.paid) / waiting
}
