package proof

import (
	"cmp"
	"slices"
)

// Seen is how a counter stood once nothing was under way any more: what an uninvolved observer was told to be left.
type Seen struct {
	Sent, Done Micros
	Limit      *Limit
	Left       int64
}

// Mismatch is a counter that does not have spent what was admitted.
type Mismatch struct {
	Counter      Counter
	Seen         Seen
	Capacity     int64 // what is left of a counter that has spent nothing
	Least, Most  int64 // what may be left
	Spent, Given int64 // what was admitted and refunded for certain
	Unsure       int64 // hits of calls that may have been counted
}

// Account compares what is left with what calls have spent and refunded: every hit is accounted for. If lost, hits
// that a replica had leased may have gone with it, so only too few spent are wrong. The second result is false if a
// window has ended in the meantime, or may have, so that nothing can be said.
func Account(calls []Call, seen Seen, lost bool) (*Mismatch, bool) {
	v := newView(calls, seen.Limit.Counter())
	if !v.lasts(seen) {
		return nil, false
	}
	m := &Mismatch{Counter: v.counter, Seen: seen}
	least, most := v.spent(m)
	if v.owners {
		held, known := v.owned(m)
		if least, most = held, held; !known {
			return nil, false
		}
	}
	limits := v.used()
	capacity := seen.Limit.Hits
	if v.counter.Algorithm == TokenBucket || v.counter.Algorithm == LeakyBucket {
		capacity = seen.Limit.Burst
		least -= credited(limits, seen.Done-v.calls[0].from)
		if alternate(limits) { // one rate's fraction of a hit may have been rounded up to another's
			most++
		}
	}
	if v.counter.Algorithm == TokenBucket {
		low := func(a, b *Limit) int { return cmp.Compare(a.Burst-a.Initial, b.Burst-b.Initial) }
		first, last := slices.MinFunc(limits, low), slices.MaxFunc(limits, low)
		least, most = least+first.Burst-first.Initial, most+last.Burst-last.Initial
	}
	m.Capacity = capacity
	m.Least, m.Most = max(capacity-most, 0), min(max(capacity-least, 0), capacity)
	if lost {
		m.Least = 0
	}
	if seen.Left >= m.Least && seen.Left <= m.Most {
		return nil, true
	}
	return m, true
}

// used returns the limits that calls may have met.
func (v *view) used() []*Limit {
	var all []*Limit
	for _, w := range v.calls {
		all = append(all, w.limits...)
	}
	return all
}

// credited returns the most that may have been refilled, or may have left the queue, within t.
func credited(limits []*Limit, t Micros) int64 {
	var u inUse
	u.wrote(limits)
	return int64(u.rate*float64(t+u.fill)) + 1
}

// lasts reports whether nothing that was spent has been forgotten when it was seen.
func (v *view) lasts(seen Seen) bool {
	if len(v.calls) == 0 {
		return false
	}
	first := v.calls[0].from
	for _, l := range append(v.used(), seen.Limit) {
		switch {
		case l.Algorithm == TokenBucket, l.Algorithm == LeakyBucket:
		case l.Algorithm == FixedWindow && !l.First:
			if _, end := l.window(first); seen.Done >= end {
				return false
			}
		case seen.Done-first >= l.Window:
			return false
		}
	}
	return true
}

// spent returns the least and the most that the counter may have counted.
func (v *view) spent(m *Mismatch) (least, most int64) {
	var taken, given []write // all that may have been taken, and what was refunded for certain
	for _, w := range v.writes {
		certain := w.sure && w.call.Outcome == Admitted
		switch {
		case w.call.Kind == Take:
			taken = append(taken, w)
			if certain {
				m.Spent += w.n
			} else { // it was rejected and counts, or has no answer
				m.Unsure += w.n
			}
		case v.counter.Algorithm == LeakyBucket: // which keeps the turns that it has promised
		case certain:
			given = append(given, w)
			m.Given += w.n
		default:
			m.Unsure += w.n
			least -= w.n
		}
	}
	least += m.Spent - m.Given
	most = after(0, taken, given)
	for _, w := range given { // which may have emptied the counter, and been too much
		most = max(most, after(w.from+1, taken, given))
	}
	return least, most
}

// after returns the most that was spent after t: what may have been taken since, less what was certainly refunded.
func after(t Micros, taken, given []write) (n int64) {
	for _, w := range taken {
		if w.to >= t {
			n += w.n
		}
	}
	for _, w := range given {
		if w.from >= t {
			n -= w.n
		}
	}
	return n
}

// owned returns how many slots owners hold. It is known only if each owner's calls came one after the other, and were
// answered.
func (v *view) owned(m *Mismatch) (held int64, known bool) {
	type last struct {
		n  int64
		to Micros
	}
	owners := map[string]last{}
	for _, w := range v.writes {
		o := owners[w.call.Owner]
		if !w.sure || w.from < o.to {
			return 0, false
		}
		switch {
		case w.call.Kind == Refund:
			o.n = max(o.n-w.n, 0)
		case w.call.Outcome == Admitted:
			o.n = max(o.n, w.n)
		}
		o.to = w.to
		owners[w.call.Owner] = o
	}
	for _, o := range owners {
		held += o.n
	}
	m.Spent, m.Given, m.Unsure = held, 0, 0
	return held, true
}
