package shares

import (
	"math"
	"slices"
)

// Row is a replica's message to the others about a bucket. Its size does not depend on the replica's streams. Rates are in hits per
// second.
type Row struct {
	Replica string
	Claim          // of all its holders and its RLS callers
	Left    bool   // the replica has closed its streams and pays for nothing any more
	Life    Micros // lifetime of the row
	Until   Micros // end of the row, set by the store on its clock

	// Fast mode only.
	Paid        float64 // average of paid, unused hits until the next row
	Returns     float64 // maximum hits that reports may return
	Held        float64 // rate that its holders may use
	HeldWeight  float64 // weight of these holders
	Ended       float64 // part of Held of holders whose streams have ended
	EndedWeight float64 // weight of these holders
	Calls       float64 // hits per second that its RLS callers request
	Taken       float64 // weight of holders that recently moved from another replica

	// Strict mode only.
	Reserved float64 // unused leased hits
	Next     float64 // hits that its holders may admit in the next window
}

// written returns the time at which r was written, on the store's clock.
func (r *Row) written() Micros { return r.Until - r.Life }

// sane reports whether all numbers of r are possible.
func (r *Row) sane() bool {
	const most = 1e15
	for _, w := range [...]float64{r.Weight, r.Open, r.Fresh} {
		if w != 0 && w < 1 || w > r.Weight { // a client weighs at least 1, and a level is a rate per weight
			return false
		}
	}
	for _, x := range [...]float64{
		r.Demand, r.Weight, r.Satisfied, r.Open, r.Fresh, r.Returns, r.Held, r.HeldWeight, r.Ended, r.EndedWeight, r.Calls, r.Taken, r.Next,
	} {
		if !(x >= 0 && x <= most) { // also false for NaN
			return false
		}
	}
	return math.Abs(r.Paid) <= most && math.Abs(r.Reserved) <= most
}

// In fast mode, a row counts for handover, since clients of a failed replica report elsewhere within an interval. In strict mode, it
// counts until all their assignments have expired. A replica writes its row each second and counts as failed after dead.
const (
	nextRow = 2 * second // additional lifetime for assignments until the next row
	dead    = 3 * second
)

// row returns the row of b, which is about to debit hits.
func (b *Bucket) row(now Micros, hits float64) Row {
	r := Row{Replica: b.Replica, Claim: b.claim, Life: handover, Left: b.closed, Calls: b.callers.rate}
	for _, h := range b.holders {
		held := h.held(now)
		r.Held += held
		r.HeldWeight += h.Weight
		r.Next += b.promisedNext(h)
		switch {
		case h.state == streamEnded:
			r.Ended += held
			r.EndedWeight += h.Weight
		case now < h.arriving:
			r.Taken += h.Weight
		}
	}
	if b.closed {
		r.Claim = Claim{}
	}
	if b.Mode == Strict {
		r.Reserved, r.Life = b.paid, b.strictLife(now)
		return r
	}
	r.Paid = b.paid + min(hits, b.wanted*b.ahead()) - b.wanted/2
	r.Returns = b.returns
	return r
}

// strictLife returns the time for which current assignments, and those until the next row, may last. A client that reports rarely has
// long assignments.
func (b *Bucket) strictLife(now Micros) Micros {
	life := usualTTL*second + b.Delivery
	for _, h := range b.holders {
		life = max(life, h.until()-now, Micros(b.ttl(h))*second+b.Delivery)
	}
	return life + nextRow
}

// receiveRows stores the rows of the other replicas.
func (b *Bucket) receiveRows(now Micros, rows []Row) {
	b.others, b.lastRows = b.others[:0], now
	mine := Row{}
	for i := range rows {
		switch r := &rows[i]; {
		case r.Replica == b.Replica:
			mine = *r
		case r.sane():
			b.others = append(b.others, *r)
		}
	}
	live := 1.0
	for i := range b.others {
		if !b.others[i].Left && b.others[i].written() >= mine.written()-dead {
			live++
		}
	}
	if b.Mode == Fast {
		b.succeed(now, &mine, live)
		b.endArrivals(now)
		return
	}
	start := b.start
	if start == 0 { // this replica has not seen the window begin
		start = b.ends - b.Limit.Window
	}
	if b.ends > 0 {
		b.inherit(mine.written()-(now-start), mine.written()-dead, live)
	}
}

// succeed makes the live replicas pay for the shares that clients of other replicas may still use, if these have closed their streams or
// have not written a row recently. It starts at the time for which those have not paid.
func (b *Bucket) succeed(now Micros, mine *Row, live float64) {
	before, oldest := b.legacy, Micros(0)
	b.legacy = 0
	for i := range b.others {
		r := &b.others[i]
		if age := mine.written() - r.written(); r.Left || age > dead {
			oldest = max(oldest, age)
			b.legacy += r.Held / live
			r.Claim, r.Ended, r.EndedWeight, r.Paid, r.Returns, r.Taken = Claim{}, r.Held, r.HeldWeight, 0, 0, 0
		}
	}
	if before == 0 && b.legacy > 0 {
		b.inherited = now - max(0, oldest-b.interval())
	}
}

// inherit makes the live replicas debit the hits that holders of a failed one may admit in this window. A row written before both times
// was written before the window began, by a failed replica.
func (b *Bucket) inherit(before, dead Micros, live float64) {
	for i := range b.others {
		r := &b.others[i]
		if (r.Left || r.written() < dead) && r.written() < before && !slices.Contains(b.heirs, r.Replica) {
			b.heirs = append(b.heirs, r.Replica)
			b.owed += r.Next / live
		}
	}
}

// part returns the part of the limit for this replica's holders and RLS callers together. It completes their claims.
func (b *Bucket) part(claims []Claim) float64 {
	b.claim = join(claims, b.level)
	free, moved := b.cap, 0.0
	if b.Mode == Fast {
		b.gone = b.leavers(b.clock.now)
		free = max(0, free-b.gone.rate*b.gone.part())
		moved = min(b.gone.mine, max(0, b.gone.taken-b.gone.weight)) // until their next row, other replicas claim these as well
	}
	elsewhere := 0.0
	for i := range b.others {
		elsewhere += b.others[i].Weight
	}
	all := append(make([]Claim, 0, 1+len(b.others)), b.claim)
	for i := range b.others {
		all = append(all, b.others[i].scaled(1-min(1, moved/max(elsewhere, moved, rounding))))
	}
	weight := b.claim.Weight + max(0, elsewhere-moved)
	presume(all, free, weight)
	presume(claims, free, weight)
	if len(b.others) == 0 {
		return free
	}
	parts, level := divide(free, all)
	b.level, b.want = level, parts[0]
	return b.want
}
