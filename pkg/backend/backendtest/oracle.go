package backendtest

import (
	"errors"
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// oracle is the simplest possible backend: a map of states, which never expire, without locks or a cap.
type oracle struct {
	states map[cell]*engine.State
}

// cell names a state.
type cell struct {
	key  backend.Key
	slot engine.Slot
}

func newOracle() *oracle { return &oracle{states: map[cell]*engine.State{}} }

func (o *oracle) state(key backend.Key, slot engine.Slot) *engine.State {
	c := cell{key, slot}
	if o.states[c] == nil {
		o.states[c] = new(engine.State)
	}
	return o.states[c]
}

// apply returns the correct decision on op at now.
func (o *oracle) apply(op *backend.Op, now engine.Micros) engine.Decision {
	states := make([]*engine.State, len(op.Limits))
	for i, l := range op.Limits {
		states[i] = o.state(op.Key, l.Slot())
	}
	if op.Penalty != nil {
		return gated(op, o.state(op.Key, engine.GateSlot), states, now)
	}
	if op.Reserve != nil {
		return reserving(op, o.state(op.Key, op.Limits[0].Slot().Reserved()), states, now)
	}
	switch op.Mode {
	case backend.Take:
		return op.Limits.Take(states, now, op.Take)
	case backend.Peek:
		return op.Limits.Peek(states, now, op.Take)
	case backend.Refund:
		return op.Limits.Refund(states, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return op.Limits.Reset(states, now)
	case backend.Settle:
	}
	return poison()
}

// remembered returns the decision on op of the backend behind a near cache. It changes no state.
func (o *oracle) remembered(op *backend.Op, now engine.Micros) engine.Decision {
	look, copies := *op, newOracle()
	look.Mode = backend.Peek
	slots := []engine.Slot{engine.GateSlot}
	for _, l := range op.Limits {
		slots = append(slots, l.Slot())
	}
	for _, slot := range slots {
		*copies.state(op.Key, slot) = *o.state(op.Key, slot) // a copy for this check
	}
	return copies.apply(&look, now)
}

func gated(op *backend.Op, gate *engine.State, states []*engine.State, now engine.Micros) engine.Decision {
	switch op.Mode {
	case backend.Take:
		return op.Penalty.Take(gate, op.Limits, states, now, op.Take)
	case backend.Peek:
		return op.Penalty.Peek(gate, op.Limits, states, now, op.Take)
	case backend.Refund:
		return op.Penalty.Refund(gate, op.Limits, states, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return op.Penalty.Reset(gate, op.Limits, states, now, op.Mode == backend.ForceReset)
	case backend.Settle:
	}
	return poison()
}

func reserving(op *backend.Op, open *engine.State, states []*engine.State, now engine.Micros) engine.Decision {
	switch op.Mode {
	case backend.Take:
		return op.Reserve.Take(open, op.Limits, states, now, op.Take)
	case backend.Peek:
		return op.Reserve.Peek(open, op.Limits, states, now, op.Take)
	case backend.Refund:
		return op.Reserve.Refund(open, op.Limits, states, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return op.Reserve.Reset(open, op.Limits, states, now)
	case backend.Settle:
		return op.Reserve.Settle(open, op.Limits, states, now, op.Take)
	}
	return poison()
}

// lastExpiry returns the latest time, up to now, from which a store could have dropped a state. If the clock jumps back before that time,
// the state may or may not exist, so no single decision is correct.
func (o *oracle) lastExpiry(now engine.Micros) engine.Micros {
	last := engine.Micros(0)
	for _, s := range o.states {
		if end := s.Expires(); !s.Empty() && end <= now {
			last = max(last, end)
		}
	}
	return last
}

// twins contains the slow models of enginetest, by key.
type twins map[backend.Key]*enginetest.Model

func (m twins) apply(op *backend.Op, now engine.Micros) engine.Decision {
	if m[op.Key] == nil {
		m[op.Key] = new(enginetest.Model)
	}
	twin := m[op.Key]
	switch op.Mode {
	case backend.Take:
		return twin.Take(op.Limits, op.Penalty, now, op.Take)
	case backend.Peek:
		return twin.Peek(op.Limits, op.Penalty, now, op.Take)
	case backend.Refund:
		return twin.Refund(op.Limits, op.Penalty, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return twin.Reset(op.Limits, op.Penalty, now, op.Mode == backend.ForceReset)
	case backend.Settle:
	}
	return poison()
}

// poison returns a decision that no engine returns.
func poison() engine.Decision {
	return engine.Decision{Admitted: math.MaxUint64, Left: math.MaxUint64, Strictest: -1}
}

var errNotDecided = errors.New("the backend set neither Decision nor Err")
