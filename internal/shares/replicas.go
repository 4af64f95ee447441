package shares

import "slices"

// Row is what one replica tells the others of a bucket. It does not grow with the streams of the replica.
type Row struct {
	Replica  string
	Claim            // of all its holders
	Cap      float64 // hits a second that all replicas may hand out, as far as this one knows
	Want     float64 // its part of Cap, as it divides it
	Held     float64 // what its holders may use now, which cannot be taken back immediately
	Reserved float64 // fast: the tokens that they may hold; strict: the hits that were leased and not used
	Next     float64 // strict: the hits that its holders may admit in the next window
	Life     Micros  // how long the row counts
	Until    Micros  // set by the store, by its clock: when it ends
	Part     float64 // set by the store: what it may hand out
}

// written returns when r was written, by the store's clock.
func (r *Row) written() Micros { return r.Until - r.Life }

// A row counts for fastLife in fast mode, since the streams of a replica that dies report elsewhere within an interval. In strict mode
// it counts until what they had must have run out. A replica writes its row each second, and is taken for dead after dead.
const (
	fastLife = usualInterval + second
	nextRow  = 2 * second // what is assigned until the next row lasts this much longer
	dead     = 3 * second
)

// row returns the row of b.
func (b *Bucket) row(now Micros) Row {
	r := Row{Replica: b.Replica, Claim: b.claim, Cap: b.cap, Want: b.want, Life: fastLife}
	for _, h := range b.holders {
		r.Held += h.held(now)
		r.Reserved += h.burst(now)
		r.Next += b.promisedNext(h)
	}
	if b.Mode == Strict {
		r.Reserved, r.Life = b.paid, b.strictLife(now)
	}
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
	b.others, b.granted = b.others[:0], 0
	mine := Row{}
	for i := range rows {
		if rows[i].Replica == b.Replica {
			mine = rows[i]
		} else {
			b.others = append(b.others, rows[i])
		}
	}
	b.granted = mine.Part
	start := b.start
	if start == 0 { // this replica has not seen the window begin
		start = b.ends - b.Limit.Window
	}
	if b.Mode == Strict && b.ends > 0 {
		b.inherit(mine.written()-(now-start), mine.written()-dead)
	}
}

// inherit makes the live replicas debit what the holders of a dead one may admit in this window, since it cannot. A row
// that was written before both times was written before the window began, and by a replica that is dead.
func (b *Bucket) inherit(before, dead Micros) {
	live := 1.0
	for i := range b.others {
		if b.others[i].written() >= dead {
			live++
		}
	}
	for i := range b.others {
		r := &b.others[i]
		if r.written() < min(before, dead) && !slices.Contains(b.heirs, r.Replica) {
			b.heirs = append(b.heirs, r.Replica)
			b.owed += r.Next / live
		}
	}
}

// part returns the part of the limit that the holders of this replica may have together. It sets the row's numbers.
func (b *Bucket) part(claims []Claim) float64 {
	b.claim = join(claims, b.level)
	if len(b.others) == 0 {
		b.want = b.cap
		return b.cap
	}
	all := make([]Claim, 0, 1+len(b.others))
	all = append(all, b.claim)
	for i := range b.others {
		all = append(all, b.others[i].Claim)
	}
	parts, level := divide(b.cap, all)
	b.level, b.want = level, parts[0]
	if b.Mode == Strict { // what is debited is safe, whatever the others hold
		return b.want
	}
	return min(b.want, b.granted)
}
