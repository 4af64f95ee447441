package shares

import (
	"math"
	"slices"
)

// Row is what one replica tells the others of a bucket. It does not grow with the streams of the replica. Rates are in hits per
// second.
type Row struct {
	Replica string
	Claim          // of all its holders, and of its RLS callers
	Left    bool   // the replica has closed its streams, and pays for nothing any more
	Life    Micros // how long the row counts
	Until   Micros // set by the store, by its clock: when it ends

	// In fast mode.
	Paid       float64 // hits that are paid for and not used, in the mean until the next row
	Returns    float64 // hits that reports may return, at most
	Held       float64 // the rate that its holders may use
	HeldWeight float64 // of these holders
	Gone       float64 // of Held, what those may use whose streams have ended
	GoneWeight float64 // of these
	Calls      float64 // hits per second that its RLS callers ask for
	Taken      float64 // the weight of those that were clients of another replica a moment ago

	// In strict mode.
	Reserved float64 // hits that were leased and not used
	Next     float64 // hits that its holders may admit in the next window
}

// written returns when r was written, by the store's clock.
func (r *Row) written() Micros { return r.Until - r.Life }

// sane reports whether all numbers of r are such as a replica may write.
func (r *Row) sane() bool {
	const most = 1e15
	for _, w := range [...]float64{r.Weight, r.Open, r.Fresh} {
		if w != 0 && w < 1 || w > r.Weight { // a client weighs 1 at least, and a level is a rate for a weight
			return false
		}
	}
	for _, x := range [...]float64{
		r.Demand, r.Weight, r.Satisfied, r.Open, r.Fresh, r.Returns, r.Held, r.HeldWeight, r.Gone, r.GoneWeight, r.Calls, r.Taken, r.Next,
	} {
		if !(x >= 0 && x <= most) { // which NaN is not either
			return false
		}
	}
	return math.Abs(r.Paid) <= most && math.Abs(r.Reserved) <= most
}

// A row counts for handover in fast mode, since the streams of a replica that dies report elsewhere within an interval. In strict
// mode it counts until what they had must have run out. A replica writes its row each second, and is taken for dead after dead.
const (
	nextRow = 2 * second // what is assigned until the next row lasts this much longer
	dead    = 3 * second
)

// row returns the row of b, which is about to debit so many hits.
func (b *Bucket) row(now Micros, hits float64) Row {
	r := Row{Replica: b.Replica, Claim: b.claim, Life: handover, Left: b.closed, Calls: b.callers.rate}
	for _, h := range b.holders {
		held := h.held(now)
		r.Held += held
		r.HeldWeight += h.Weight
		r.Next += b.promisedNext(h)
		switch {
		case h.state == gone:
			r.Gone += held
			r.GoneWeight += h.Weight
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

// strictLife returns how long everything lasts that holders were assigned, or may be before the next row. A client that reports seldom has
// long assignments.
func (b *Bucket) strictLife(now Micros) Micros {
	life := usualTTL*second + b.Delivery
	for _, h := range b.holders {
		life = max(life, h.until()-now, Micros(b.ttl(h))*second+b.Delivery)
	}
	return life + nextRow
}

// hear takes over what the other replicas say.
func (b *Bucket) hear(now Micros, rows []Row) {
	b.others, b.heard = b.others[:0], now
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

// succeed makes the live replicas pay for what clients may use of those that have closed their streams, or have written nothing for a
// while: from the time on for which these have not paid.
func (b *Bucket) succeed(now Micros, mine *Row, live float64) {
	before, oldest := b.legacy, Micros(0)
	b.legacy = 0
	for i := range b.others {
		r := &b.others[i]
		if age := mine.written() - r.written(); r.Left || age > dead {
			oldest = max(oldest, age)
			b.legacy += r.Held / live
			r.Claim, r.Gone, r.GoneWeight, r.Paid, r.Returns, r.Taken = Claim{}, r.Held, r.HeldWeight, 0, 0, 0
		}
	}
	if before == 0 && b.legacy > 0 {
		b.inherited = now - max(0, oldest-b.interval())
	}
}

// inherit makes the live replicas debit what the holders of a dead one may admit in this window, since it cannot. A row
// that was written before both times was written before the window began, and by a replica that is dead.
func (b *Bucket) inherit(before, dead Micros, live float64) {
	for i := range b.others {
		r := &b.others[i]
		if (r.Left || r.written() < dead) && r.written() < before && !slices.Contains(b.heirs, r.Replica) {
			b.heirs = append(b.heirs, r.Replica)
			b.owed += r.Next / live
		}
	}
}

// part returns the part of the limit that the holders of this replica and its RLS callers may have together. It completes their
// claims.
func (b *Bucket) part(claims []Claim) float64 {
	b.claim = join(claims, b.level)
	free, moved := b.cap, 0.0
	if b.Mode == Fast {
		b.gone = b.leavers(b.clock.now)
		free = max(0, free-b.gone.rate*b.gone.part())
		moved = min(b.gone.mine, max(0, b.gone.taken-b.gone.weight)) // which others claim as well, until their next row
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
