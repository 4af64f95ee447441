package proof

import "slices"

// tokenBucket: at most burst + rate·t in any span of t. Debt adds to the burst, and a fill interval to t. Tokens leased before
// the span may be spent in it: at most two leases per replica.
func (v *view) tokenBucket(replicas int) *Excess {
	return v.scan(bound{
		words: "at most the largest burst (and debt) + the largest rate × t, and what is leased",
		most: func(u *inUse, t Micros) float64 {
			return float64(u.burst) + u.rate*float64(t+u.fill) + float64(2*int64(replicas)*u.leasing)
		},
	})
}

// startsLow: a bucket that starts with fewer tokens than its burst admits no more than these at first.
func (v *view) startsLow(replicas int) *Excess {
	if len(v.calls) == 0 {
		return nil
	}
	missing, burst, debt := int64(forever), int64(0), int64(0)
	for _, w := range v.calls { // a check without hits may create it
		for _, l := range w.limits {
			missing, burst, debt = min(missing, l.Burst-l.Initial), max(burst, l.Burst), max(debt, l.Debt)
		}
	}
	if missing == 0 {
		return nil
	}
	first := v.calls[0].from
	return v.scanFrom([]Micros{first}, bound{
		words: "at most the initial tokens (and debt) + the largest rate × t since the first call, and what is leased",
		most: func(u *inUse, t Micros) float64 {
			return float64(burst-missing+debt) + u.rate*float64(t+u.fill) + float64(2*int64(replicas)*u.leasing)
		},
	})
}

// leakyBucket: fewer than burst + 1 admitted hits are queued.
func (v *view) leakyBucket() *Excess {
	return v.scan(bound{
		words: "at most the largest burst + 1 + the largest rate × t",
		kept:  true,
		most: func(u *inUse, t Micros) float64 {
			return float64(u.burst+1) + u.rate*float64(t)
		},
	})
}

// turns: the turns promised in any span of t belong to at most rate·t hits and one request, plus the largest burst if settings
// alternate.
func (v *view) turns() *Excess {
	if v.counter.Listed { // the wait may be that of another limit
		return nil
	}
	var all inUse
	var limits []*Limit
	for _, w := range v.writes {
		all.wrote(w.limits)
		limits = append(limits, w.limits...)
	}
	if alternate(limits) {
		for _, l := range limits {
			all.burst = max(all.burst, l.Burst)
		}
	}
	const inexact = 2 // µs; rounding error of turns and times
	moved := &view{counter: v.counter}
	for _, h := range v.hits {
		h.from += h.call.Wait - WaitUnit - inexact
		h.to += h.call.Wait + inexact
		moved.hits = append(moved.hits, h)
	}
	moved.sort()
	e := moved.scan(bound{
		words: "the turns of at most the cost of a request + the largest rate × t (and the largest burst where settings alternate)",
		kept:  true,
		most: func(u *inUse, t Micros) float64 {
			return float64(u.cost+all.burst) + all.rate*float64(t)
		},
	})
	if e != nil {
		e.Turns = true
	}
	return e
}

// alternate reports whether limits differ.
func alternate(limits []*Limit) bool {
	return slices.ContainsFunc(limits, func(l *Limit) bool { return *l != *limits[0] })
}
