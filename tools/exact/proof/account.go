package proof

import (
	"cmp"
	"slices"
)

// Seen is the state of an idle counter, as an uninvolved observer read it.
type Seen struct {
	Sent, Done Micros
	Limit      *Limit
	Left       int64
}

// Mismatch is a counter whose spent hits differ from the admitted ones.
type Mismatch struct {
	Counter      Counter
	Seen         Seen
	Capacity     int64 // remaining hits of an unused counter
	Least, Most  int64 // possible remaining hits
	Spent, Given int64 // certainly admitted and certainly refunded hits
	Unsure       int64 // hits of calls that may have been counted
}

// Account compares remaining hits with the spent and refunded hits of calls. If lost, a replica may have lost leased hits, so
// only too few spent hits are a mismatch. The second result is false if a window has ended, or may have, so that nothing is
// known.
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
		if alternate(limits) { // with two rates, a fraction of a hit may have been rounded up
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

// used returns the limits that calls may have used.
func (v *view) used() []*Limit {
	var all []*Limit
	for _, w := range v.calls {
		all = append(all, w.limits...)
	}
	return all
}

// credited returns the maximum number of hits refilled or drained within t.
func credited(limits []*Limit, t Micros) int64 {
	var u inUse
	u.wrote(limits)
	return int64(u.rate*float64(t+u.fill)) + 1
}

// lasts reports whether no spent hit had expired when the counter was read.
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

// spent returns the minimum and the maximum of the counted hits.
func (v *view) spent(m *Mismatch) (least, most int64) {
	var taken, given []write // all possible takes, and all certain refunds
	for _, w := range v.writes {
		certain := w.sure && w.call.Outcome == Admitted
		switch {
		case w.call.Kind == Take:
			taken = append(taken, w)
			if certain {
				m.Spent += w.n
			} else { // counted although rejected, or not answered
				m.Unsure += w.n
			}
		case v.counter.Algorithm == LeakyBucket: // its promised turns cannot be refunded
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
	for _, w := range given { // an excessive refund may have emptied the counter
		most = max(most, after(w.from+1, taken, given))
	}
	return least, most
}

// after returns the maximum spent after t: possible takes minus certain refunds.
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

// owned returns the number of slots that owners hold. known is false unless each owner's calls were sequential and answered.
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
