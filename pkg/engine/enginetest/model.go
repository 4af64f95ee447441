// Package enginetest implements a slow, obvious twin of pkg/engine, the reference for the engine and the backends, and generators of
// limits and takes that favor edge cases.
//
// Where the engine keeps a timestamp, the twin keeps the tokens of a bucket as a rational number. Where the engine merges hits, the twin
// lists them. Where the engine divides to count how many takes fit, the twin takes one after the other. Where the engine computes the
// time at which a cost is admitted, the twin searches for it. And where the engine computes the beginning of a day in a time zone, the
// twin reads the zone's clock until the date changes.
package enginetest

import (
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Model is the twin of all states of one descriptor, including a penalty's. The zero Model is that of a new key. A call takes time
// proportional to Count and Extra, which should be small.
type Model struct {
	counters map[engine.Slot]counter
	gate     gate
	windows  windows
}

// Take is the twin of [engine.Limits.Take], or of [engine.Penalty.Take] if p is not nil.
func (m *Model) Take(l engine.Limits, p *engine.Penalty, now engine.Micros, t engine.Take) engine.Decision {
	now = inRange(now)
	if t.Cost == 0 && (p == nil || !m.gate.runs(now)) {
		m.start(l, now)
	}
	if t.Cost == 0 || t.Count+t.Extra == 0 {
		return m.Peek(l, p, now, t)
	}
	t.Cost = min(t.Cost, engine.MaxHits)
	before := m.lefts(l, now, t.Owner)
	var d, one engine.Decision
	var met bool
	for i := range t.Count {
		one, met = m.takeOne(l, p, now, t)
		switch {
		case i == 0 && !met:
			return one
		case i == 0:
			d = one
		case met: // the take reached the counter and did not stop at the gate
			one.Admitted += d.Admitted
			one.Wait, one.Renewed = d.Wait, d.Renewed
			d = one
		default:
			d.RetryAfter, d.Penalty = one.RetryAfter, one.Penalty
		}
	}
	if p == nil && d.Admitted == t.Count {
		m.takeExtra(l, now, t, &d)
	}
	d.Left = before[d.Strictest]
	d.ResetAfter = m.resetAfter(&l[d.Strictest], now)
	return d
}

// takeOne decides a single take, and reports whether it reached the counter rather than stopping at the gate.
func (m *Model) takeOne(l engine.Limits, p *engine.Penalty, now engine.Micros, t engine.Take) (engine.Decision, bool) {
	t.Count, t.Extra = 1, 0
	if p == nil {
		return m.count(l, now, t), true
	}
	if m.gate.runs(now) {
		m.gate.settle(now)
		return m.gate.reject(m.look(l, now, t), now), false
	}
	d := m.count(l, now, t)
	reached := d.Admitted == 1 && d.Left <= t.Cost
	if p.On == engine.OnReached && reached || p.On == engine.OnExceeded && d.Admitted == 0 {
		m.gate.start(p, now)
		d.Penalty = span(m.gate.end - now)
		if d.Admitted == 0 {
			d.RetryAfter = max(d.RetryAfter, d.Penalty)
		}
	}
	return d, true
}

// takeExtra takes up to t.Extra more and adds them to d. It ends at the first rejection, which changes nothing.
func (m *Model) takeExtra(l engine.Limits, now engine.Micros, t engine.Take, d *engine.Decision) {
	t.Count = 1
	for i := range t.Extra {
		if m.look(l, now, t).Admitted == 0 {
			return
		}
		one := m.count(l, now, t)
		if i == 0 && d.Admitted == 0 {
			*d = one
			continue
		}
		d.Admitted++
		d.Strictest, d.Window = one.Strictest, one.Window
	}
}

// count decides one take on the counters.
func (m *Model) count(l engine.Limits, now engine.Micros, t engine.Take) engine.Decision {
	d := m.judge(l, now, t)
	for i := range l {
		c := m.at(&l[i], now)
		d.Window = max(d.Window, c.window(&l[i]))
		switch {
		case d.Admitted == 1:
			d.Wait = max(d.Wait, c.wait(&l[i], now))
			d.Renewed = max(d.Renewed, c.spend(&l[i], now, t))
		case l[i].CountRefused && len(l) == 1:
			if !c.overspend(&l[i], now, t.Cost) {
				continue
			}
		case !c.worthKeeping(&l[i]):
			continue
		}
		m.keep(&l[i], c, now)
		d.Window = max(d.Window, c.window(&l[i]))
	}
	if d.Admitted == 0 {
		d.RetryAfter = m.retryAfter(&l[d.Strictest], now, t)
	}
	return d
}

// Peek is the twin of [engine.Limits.Peek], or of [engine.Penalty.Peek] if p is not nil.
func (m *Model) Peek(l engine.Limits, p *engine.Penalty, now engine.Micros, t engine.Take) engine.Decision {
	now = inRange(now)
	t.Cost = min(t.Cost, engine.MaxHits)
	d := m.look(l, now, t)
	if p != nil && m.gate.runs(now) {
		return m.gate.reject(d, now)
	}
	return d
}

// start stores the counters of buckets that begin to fill at the first call.
func (m *Model) start(l engine.Limits, now engine.Micros) {
	for i := range l {
		if c := m.at(&l[i], now); c.begins(&l[i]) {
			m.keep(&l[i], c, now)
		}
	}
}

// look counts admissions on a copy and returns the state of the original.
func (m *Model) look(l engine.Limits, now engine.Micros, t engine.Take) engine.Decision {
	d := m.judge(l, now, t)
	if d.Admitted == 1 && t.Cost == 0 {
		d.Admitted = t.Count
	}
	scratch := m.clone()
	if d.Admitted == 1 && t.Cost > 0 {
		d.Admitted = 0
		for d.Admitted < t.Count+t.Extra && scratch.judge(l, now, t).Admitted == 1 {
			scratch.count(l, now, t)
			d.Admitted++
		}
	}
	if d.Admitted < t.Count {
		d.Strictest = m.strictest(l, now, t, scratch.rejecting(l, now, t))
		d.RetryAfter = m.retryAfter(&l[d.Strictest], now, t)
	}
	d.Left = m.lefts(l, now, t.Owner)[d.Strictest]
	d.ResetAfter = m.resetAfter(&l[d.Strictest], now)
	for i := range l {
		c := m.at(&l[i], now)
		d.Window = max(d.Window, c.window(&l[i]))
		if d.Admitted > 0 {
			d.Wait = max(d.Wait, c.wait(&l[i], now))
		}
	}
	return d
}

// judge decides one take: whether it is admitted, the strictest limit, and the hits left of that limit.
func (m *Model) judge(l engine.Limits, now engine.Micros, t engine.Take) engine.Decision {
	rejecting := m.rejecting(l, now, t)
	d := engine.Decision{Strictest: m.strictest(l, now, t, rejecting)}
	if !slices.Contains(rejecting, true) {
		d.Admitted = 1
	}
	d.Left = m.lefts(l, now, t.Owner)[d.Strictest]
	return d
}

// rejecting returns, for each limit, whether it rejects one take.
func (m *Model) rejecting(l engine.Limits, now engine.Micros, t engine.Take) []bool {
	rejecting := make([]bool, len(l))
	for i := range l {
		c := m.at(&l[i], now)
		cost := t.Cost
		if cost == 0 && (len(l) > 1 || !l[i].CountRefused || l[i].Algorithm != engine.FixedWindow) {
			cost = 1
		}
		rejecting[i] = !c.fits(&l[i], cost, t.Owner)
	}
	return rejecting
}

// strictest returns the strictest limit: among those that reject, the one with the longest RetryAfter; otherwise the one with the least
// left.
func (m *Model) strictest(l engine.Limits, now engine.Micros, t engine.Take, rejecting []bool) int {
	lefts := m.lefts(l, now, t.Owner)
	least := slices.Index(lefts, slices.Min(lefts))
	strictest, longest := least, time.Duration(-1)
	for i := range l {
		if !rejecting[i] {
			continue
		}
		if after := m.retryAfter(&l[i], now, t); after > longest {
			strictest, longest = i, after
		}
	}
	return strictest
}

// Refund is the twin of [engine.Limits.Refund], or of [engine.Penalty.Refund] if p is not nil.
func (m *Model) Refund(l engine.Limits, p *engine.Penalty, now engine.Micros, t engine.Take) engine.Decision {
	now = inRange(now)
	hits := times(min(t.Cost, engine.MaxHits), t.Count)
	d := engine.Decision{}
	for i := range l {
		c := m.at(&l[i], now)
		if c.takesBack(&l[i], hits) {
			c.give(&l[i], now, t, hits)
			m.keep(&l[i], c, now)
		}
		d.Window = max(d.Window, c.window(&l[i]))
	}
	lefts := m.lefts(l, now, t.Owner)
	d.Admitted, d.Left = t.Count, slices.Min(lefts)
	d.Strictest = slices.Index(lefts, d.Left)
	d.ResetAfter = m.resetAfter(&l[d.Strictest], now)
	if p != nil && m.gate.runs(now) {
		m.gate.settle(now)
		d.Penalty = m.gate.left(now)
	}
	return d
}

// Reset is the twin of [engine.Limits.Reset], or of [engine.Penalty.Reset] if p is not nil.
func (m *Model) Reset(l engine.Limits, p *engine.Penalty, now engine.Micros, force bool) engine.Decision {
	now = inRange(now)
	if p != nil && m.gate.runs(now) && !force {
		m.gate.settle(now)
		return m.gate.reject(m.Refund(l, nil, now, engine.Take{}), now)
	}
	for i := range l {
		delete(m.counters, l[i].Slot())
	}
	if p != nil {
		m.gate = gate{}
	}
	d := m.Refund(l, nil, now, engine.Take{})
	d.Admitted = 1
	return d
}
