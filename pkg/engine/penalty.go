package engine

import (
	"math/bits"
	"time"
)

// Trigger is the event that starts a penalty.
type Trigger uint8

// The triggers.
const (
	OnExceeded Trigger = iota // a rejection
	OnReached                 // an admitted take that leaves nothing
)

// Penalty rejects everything for a time after a limit was exceeded or reached. It is a gate in front of the counter, with its own state,
// and independent of the counter's algorithm.
//
// During a penalty, takes and checks are rejected, nothing is counted, and nothing prolongs the penalty.
type Penalty struct {
	For      Micros // length, at least 1
	Max      Micros // maximum length; also the time after its end in which another penalty counts as a repetition
	On       Trigger
	Escalate uint32 // factor between the lengths of consecutive repetitions; 1 keeps the length
}

// Validate returns nil if p is valid, and otherwise a [*FieldError] for the first invalid field.
func (p *Penalty) Validate() error {
	switch {
	case p.For < 1 || p.For > maxWindow:
		return wrong("for", "is %d µs; a penalty lasts from 1 µs to 2^48 µs (8.9 years)", p.For)
	case p.On > OnReached:
		return wrong("on", "is not known; it must be exceeded or reached")
	case p.Escalate < 1:
		return wrong("escalate", "is 0; it must be a whole number of at least 1, which means the same length again")
	case p.Max < p.For || p.Max > maxWindow:
		return wrong("max", "is %d µs; it must be from %d µs, the length of the first penalty, to 2^48 µs (8.9 years)", p.Max, p.For)
	}
	return nil
}

// Take is [Limits.Take] behind the gate, whose state is gate. It ignores t.Extra.
func (p *Penalty) Take(gate *State, l Limits, s []*State, now Micros, t Take) Decision {
	now, t.Extra = inRange(now), 0
	if t.Cost == 0 {
		if _, runs := gate.penalty(now); !runs { // a Peek would not start a bucket
			return l.Take(s, now, t)
		}
		return p.Peek(gate, l, s, now, t)
	}
	if end, runs := gate.settlePenalty(now); runs {
		t.Count = min(t.Count, 1)
		return reject(l.Peek(s, now, t), until(end, now))
	}
	part := t
	part.Count = p.first(l, s, now, t)
	d := l.Take(s, now, part)
	if !p.starts(&d, &part) {
		return d
	}
	d.Penalty = p.start(gate, now)
	if d.Admitted < t.Count {
		d.RetryAfter = max(d.RetryAfter, d.Penalty)
	}
	if d.Admitted == part.Count && part.Count < t.Count { // the gate rejects the remaining takes, which do not reach the counter
		d.RetryAfter = max(d.RetryAfter, l.Peek(s, now, Take{Cost: t.Cost, Count: 1, Owner: t.Owner}).RetryAfter)
	}
	return d
}

// first returns the number of t.Count that reach the counter: all up to and including the one that starts the penalty.
func (p *Penalty) first(l Limits, s []*State, now Micros, t Take) uint64 {
	if t.Count <= 1 {
		return t.Count
	}
	admitted := l.Peek(s, now, t).Admitted
	if p.On == OnExceeded {
		return min(t.Count, admitted+1)
	}
	one := l.Peek(s, now, Take{Cost: t.Cost, Count: 1, Owner: t.Owner})
	n := max(1, one.Left/t.Cost+min(1, one.Left%t.Cost)) // the n-th leaves nothing
	if n > admitted || n > 1 && t.Owner != "" {
		return t.Count
	}
	return n
}

// starts reports whether d, the decision on t, starts a penalty.
func (p *Penalty) starts(d *Decision, t *Take) bool {
	if p.On == OnExceeded {
		return d.Admitted < t.Count
	}
	n := d.Admitted
	if t.Owner != "" {
		n = min(n, 1)
	}
	return n > 0 && Times(n, min(t.Cost, MaxHits)) >= d.Left
}

// start starts a penalty and returns its length.
func (p *Penalty) start(gate *State, now Micros) time.Duration {
	n := p.For
	if p.Escalate > 1 && now < gate.expires {
		n = p.Max
		if hi, lo := bits.Mul64(gate.n, uint64(p.Escalate)); hi == 0 && lo < uint64(p.Max) {
			n = max(p.For, Micros(lo))
		}
	}
	*gate = State{at: now + n, n: uint64(n), expires: now + n}
	if p.Escalate > 1 {
		gate.expires += p.Max
	}
	return until(gate.at, now)
}

// penalty returns the end of a gate's penalty, and whether it is running. An end that is further away than the penalty's length is due to
// a clock that was set back; the penalty then counts as if it began now.
func (s *State) penalty(now Micros) (end Micros, runs bool) {
	if now >= s.expires {
		return 0, false
	}
	end = min(s.at, now+Micros(s.n))
	return end, now < end
}

// settlePenalty is like penalty but also corrects the state of a penalty from the future.
func (s *State) settlePenalty(now Micros) (end Micros, runs bool) {
	end, runs = s.penalty(now)
	if future := s.at - end; now < s.expires && future > 0 {
		s.at, s.expires = end, s.expires-future
	}
	return end, runs
}

// reject turns a counter's decision into a rejection by a penalty. Nothing is left while the penalty runs.
func reject(d Decision, penalty time.Duration) Decision {
	d.Admitted, d.Left, d.Wait, d.Renewed = 0, 0, 0, 0
	d.Penalty, d.RetryAfter = penalty, max(d.RetryAfter, penalty)
	return d
}

// Peek is [Limits.Peek] behind the gate.
func (p *Penalty) Peek(gate *State, l Limits, s []*State, now Micros, t Take) Decision {
	now = inRange(now)
	d := l.Peek(s, now, t)
	if end, runs := gate.penalty(now); runs {
		return reject(d, until(end, now))
	}
	return d
}

// Refund is [Limits.Refund] behind the gate. It does not end a penalty.
func (p *Penalty) Refund(gate *State, l Limits, s []*State, now Micros, t Take) Decision {
	now = inRange(now)
	d := l.Refund(s, now, t)
	if end, runs := gate.settlePenalty(now); runs {
		d.Penalty = until(end, now)
	}
	return d
}

// Reset is [Limits.Reset] behind the gate and also resets the gate. During a penalty, it does nothing unless force is set: Admitted is 0,
// and Penalty is the remaining time.
func (p *Penalty) Reset(gate *State, l Limits, s []*State, now Micros, force bool) Decision {
	now = inRange(now)
	if end, runs := gate.settlePenalty(now); runs && !force {
		return reject(l.Refund(s, now, Take{}), until(end, now))
	}
	*gate = State{}
	return l.Reset(s, now)
}
