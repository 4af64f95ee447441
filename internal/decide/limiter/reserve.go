package limiter

import (
	"context"
	"crypto/rand"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// NoReservation is the value of a reservation entry that settles nothing. The empty value means the same, but some proxies cannot send
// it.
const NoReservation = "none"

// settles reports whether d settles a reservation, if its rule takes reservations.
func (d *Descriptor) settles() bool {
	return d.HasReservation && !d.Opens && len(d.Reservation) > 0 && string(d.Reservation) != NoReservation
}

// refunds reports whether d only refunds or settles, and so cannot be rejected.
func (d *Descriptor) refunds() bool { return d.Negative || d.settles() }

// findReservations moves the entries that settle reservations out of r's descriptors. Rules, controls and later phases see only the other
// entries.
func (v *resolution) findReservations(r *Request) {
	for i := range r.Descriptors {
		if desc := &r.Descriptors[i]; !desc.HasReservation {
			v.findReservation(desc)
		}
	}
}

// findReservation moves the first entry that settles a reservation out of desc.
func (v *resolution) findReservation(desc *Descriptor) {
	for j := range desc.Entries {
		if !named(v.domain.ReserveEntries, desc.Entries[j].Key) {
			continue
		}
		since := len(v.entries)
		rest := v.without(desc.Entries, j)
		if m := v.domain.Match(rest); m.Rule == nil || !m.Rule.SettlesBy(desc.Entries[j].Key) {
			v.entries = v.entries[:since]
			continue
		}
		desc.Reservation, desc.HasReservation = desc.Entries[j].Value, true
		desc.Entries = rest
		return
	}
}

// without returns entries without the i-th one.
func (v *resolution) without(entries []descriptors.Entry, i int) []descriptors.Entry {
	rest, since := entries[:i:i], len(v.entries)
	if i+1 < len(entries) {
		v.entries = append(append(v.entries, rest...), entries[i+1:]...)
		rest = v.entries[since:len(v.entries):len(v.entries)]
	}
	return rest
}

// named reports whether key is one of names.
func named(names []string, key []byte) bool {
	return slices.ContainsFunc(names, func(name string) bool { return name == string(key) })
}

// reserving is a descriptor's use of reservations.
type reserving uint8

const (
	reservesNothing reserving = iota
	reserves                  // reserves its hits
	settles                   // settles the reservation t.id
	forged                    // tries to settle an ID that no key of this process made
	charges                   // charges at the end, without a reservation
)

// reserve determines how desc, whose rule has reservations, uses them.
func (t *part) reserve(s *Sealer, r *Request, desc *Descriptor) {
	switch {
	case desc.Negative:
	case desc.settles():
		if id, ok := s.open(desc.Reservation); ok {
			t.reserving, t.id, t.Negative = settles, id, true
			return
		}
		if t.reserving = forged; t.Outcome == Undecided {
			t.Outcome = Skipped
		}
	case desc.HasReservation:
		t.reserving = charges
	default:
		t.reserving = reserves
		if r.hitless(desc) {
			t.Hits = t.estimate()
		}
	}
}

// reserveBy implements reserve if an entry names the reservation. Without hits, desc requests a reservation; with hits, it reports the
// cost of a request that has run. Only the backend knows whether the name was used before, so [Scratch.completeReserveBy] completes the
// result. Without a usable name, hits are charged, and a request without hits only checks.
func (t *part) reserveBy(r *Request, desc *Descriptor) {
	usable := len(desc.Reservation) > 0 && len(desc.Reservation) <= descriptors.MaxReserveBy
	switch asks := r.hitless(desc); {
	case desc.Negative:
	case asks && usable:
		t.reserving, t.Hits = reserves, t.estimate()
	case asks:
		t.Hits = 0
	case usable:
		t.reserving, t.Negative = settles, true
	default:
		t.reserving = charges
	}
}

// completeReserveBy completes the results of reserveBy from the decisions on the operations.
func (p *Scratch) completeReserveBy() {
	for i := range p.ops {
		op, t := &p.ops[i], &p.parts[p.owners[i]]
		if op.Reserve == nil || !op.Reserve.Repeats {
			continue
		}
		switch o := op.Decision.Reservation; {
		case o == engine.ReservationCharged:
			t.reserving, t.Negative = charges, false
		case t.reserving == reserves && (o == engine.ReservationSettled || o == engine.ReservationRepeated):
			t.reserving, t.Hits = settles, 0
		}
	}
}

// estimate returns the number of hits that t reserves if the request does not specify it. It never exceeds the maximum that the limit in
// force can admit: a tenant's own number, a control or the request may have made the limit smaller than the rule's estimate.
func (t *part) estimate() uint64 {
	hits, _ := t.rule.costs.estimate(t.Rule.Reserve)
	if t.Outcome == Unlimited || t.Limits.Len() == 0 {
		return hits
	}
	if most := t.Limits.At(0).Limit.MaxCost(); most > 0 {
		return min(hits, most)
	}
	return hits
}

// reserveOp prepares op, the last operation, for reservations. All reservations of a request share one name, unless an entry of desc names
// them. If several have the same counter, each gets its own name, derived from the shared name and their order.
func (p *Scratch) reserveOp(t *part, op *backend.Op, desc *Descriptor) {
	op.Reserve, op.Lease = &t.Rule.Reserve.Reserve, backend.LeaseOff
	p.reserving = p.reserving || t.reserving == reserves
	switch by := op.Reserve.Repeats; {
	case by && (t.reserving == reserves || t.reserving == settles):
		t.id = p.reservationID(desc.Reservation)
		op.Take.Reservation = t.id
	case t.reserving == settles:
		op.Take.Reservation = t.id
	case t.reserving == reserves:
		if p.name == (engine.ReservationID{}) && p.rules.config.Reservations.Ready() {
			_, _ = rand.Read(p.name[:]) // never fails
		}
		op.Take.Reservation = p.name
	}
	if op.Take.Reservation == (engine.ReservationID{}) {
		return
	}
	before := uint16(0) // less than MaxDescriptors
	for i := range p.ops[:len(p.ops)-1] {
		other := &p.ops[i]
		if other.Key == op.Key && other.Mode == op.Mode && other.Reserve != nil && p.parts[p.owners[i]].id == t.id {
			before++
		}
	}
	op.Take.Reservation[0] ^= byte(before)
	op.Take.Reservation[1] ^= byte(before >> 8)
}

// reservationID returns the name of the reservation that a value names. The hashed text begins with two zero bytes to differ from names of
// counters and of holders.
func (p *Scratch) reservationID(value []byte) engine.ReservationID {
	secret := p.rules.config.Secret
	p.text = append(append(secret.Begin(p.text[:0]), 0, 0), value...)
	key := secret.Hash(p.text)
	return engine.ReservationID(key[:len(engine.ReservationID{})])
}

// open reports whether t has opened a reservation that is still open.
func (p *Scratch) open(t *part) bool {
	return t.op >= 0 && t.reserving == reserves && t.spent != released && p.ops[t.op].Decision.Reservation == engine.ReservationOpen
}

// release settles the open reservations of a request at a cost of 0, because no client gets their ID: the request was rejected, or it has
// no verdict because the backend failed for another counter.
func (l *Limiter) release(ctx context.Context, p *Scratch) {
	p.batch, p.picked = p.batch[:0], p.picked[:0]
	for i := range p.parts {
		t := &p.parts[i]
		if !p.open(t) {
			continue
		}
		if t.spent == charged { // otherwise it has been refunded
			p.batch, p.picked = append(p.batch, refundOf(&p.ops[t.op])), append(p.picked, t.op)
		}
		t.spent = released
	}
	if len(p.batch) > 0 {
		l.applyRefunds(ctx, p, len(p.batch))
	}
}

// sealed returns the ID of the request's reservations, or "" if it has none.
func (l *Limiter) sealed(p *Scratch) string {
	if p.name == (engine.ReservationID{}) {
		return ""
	}
	for i := range p.parts {
		if t := &p.parts[i]; p.open(t) && t.Rule.Reserve.By == "" {
			return l.config.Reservations.seal(p.name)
		}
	}
	return ""
}

// reserved returns the hits that t consumed or, if back, refunded through its reservation.
func (p *Scratch) reserved(t *part) (hits uint64, back bool) {
	switch {
	case t.reserving == forged:
		return 0, true
	case t.reserving != settles || t.op < 0:
		return t.Hits, t.Negative
	}
	difference := p.ops[t.op].Decision.Difference
	return uint64(max(difference, -difference)), difference <= 0
}

// Outcomes of reservations in metrics.
const (
	countReserved = iota
	countUnrecorded
	countReleased
	countSettled
	countUnknown
	countForged
	countCharged
	countExpired
	countRepeated
	countLate
	countedReservations
)

// Effects on hits in metrics.
const (
	hitsReserved = iota
	hitsGivenBack
	hitsCharged
	countedHits
)

// reservations counts the reservations of a domain.
type reservations struct {
	outcomes [countedReservations]*count.Counter
	foreign  atomic.Uint64 // IDs that no key of this process made, whether unknown or forged
	hits     [countedHits]*count.Counter
}

// reservations returns the counters of a domain's reservations.
func (c *counts) reservations(domain string) *reservations {
	n := new(reservations)
	for i, outcome := range [countedReservations]string{
		"reserved", "unrecorded", "released", "settled", "unknown", "forged", "charged", "expired", "repeated", "late",
	} {
		n.outcomes[i] = c.metrics.Count(Reservations, domain, outcome)
	}
	for i, action := range [countedHits]string{"reserved", "given_back", "charged"} {
		n.hits[i] = c.metrics.Count(ReservationHits, action, domain)
	}
	return n
}

// readyReservations creates the counters of a domain's reservations if its rules take any.
func (c *counts) readyReservations(k *domain, d *descriptors.Domain) {
	if (d.ReserveEntries != nil || d.ReserveBy != nil) && k.reservations.Load() == nil {
		k.reservations.Store(c.reservations(d.Name))
	}
}

// count counts the outcomes of p's reservations, whose IDs s made.
func (n *reservations) count(p *Scratch, s *Sealer) {
	for i := range p.parts {
		t := &p.parts[i]
		if t.reserving == forged {
			n.foreign.Add(1)
			n.outcomes[s.foreign()].Add(1)
		}
		if t.op < 0 || p.ops[t.op].Reserve == nil {
			continue
		}
		d := &p.ops[t.op].Decision
		if t.rule != nil && p.ops[t.op].Err == nil && t.fallback == descriptors.FailDefault {
			hits := d.Reserved
			if t.spent == released { // released since the decision
				hits -= min(hits, t.Hits)
			}
			t.rule.reserved.see(p.ops[t.op].Key, hits, time.Duration(p.ops[t.op].Reserve.TTL)*time.Microsecond)
		}
		n.outcomes[countExpired].Add(uint64(d.Expired))
		switch {
		case t.reserving == charges:
			n.outcomes[countCharged].Add(1)
		case t.spent == released:
			n.outcomes[countReserved].Add(1)
			n.outcomes[countReleased].Add(1)
			n.hits[hitsReserved].Add(Counted(t.Hits))
			n.hits[hitsGivenBack].Add(Counted(t.Hits))
		case d.Reservation == engine.ReservationOpen:
			n.outcomes[countReserved].Add(1)
			n.hits[hitsReserved].Add(Counted(t.Hits))
		case t.reserving == reserves && d.Admitted > 0 && t.spent == charged:
			n.outcomes[countUnrecorded].Add(1)
		case d.Reservation == engine.ReservationRepeated:
			n.outcomes[countRepeated].Add(1)
		case d.Reservation == engine.ReservationLate:
			n.outcomes[countLate].Add(1)
			n.hits[hitsCharged].Add(Counted(uint64(d.Difference)))
		case d.Reservation == engine.ReservationSettled:
			n.outcomes[countSettled].Add(1)
			t.rule.costs.add(t.Hits)
			if d.Difference < 0 {
				n.hits[hitsGivenBack].Add(Counted(uint64(-d.Difference)))
			} else {
				n.hits[hitsCharged].Add(Counted(uint64(d.Difference)))
			}
		case d.Reservation == engine.ReservationUnknown:
			n.outcomes[countUnknown].Add(1)
		}
	}
}

// difference counts the hits that a settlement charged or refunded. A charge beyond the limit counts as within it, because it rejected
// nothing.
func difference(n *count.Rule, hits int64) {
	if hits < 0 {
		n.TotalNegativeHits.Add(Counted(uint64(-hits)))
		return
	}
	n.TotalHits.Add(Counted(uint64(hits)))
	n.WithinLimit.Add(Counted(uint64(hits)))
}

// unreadCost is the number of hits that metrics count for more than any limit admits. Envoy sends a cost that it cannot read as an enormous
// number, which would dwarf all others. Of the costs that it can read, this is the largest.
const unreadCost = 1_000_000_000

// Counted returns the number of hits that metrics count for the hits of one descriptor.
func Counted(hits uint64) uint64 {
	if hits > engine.MaxLimit {
		return unreadCost
	}
	return hits
}
