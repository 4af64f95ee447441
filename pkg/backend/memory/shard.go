package memory

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// shard holds the counters of a subset of the keys.
type shard struct {
	mu sync.Mutex
	table
	due   *atomic.Int64  // element of Backend.due
	last  engine.Micros  // latest time of an op or of a cleanup
	hand  uint32         // index of the next entry to age
	fresh []engine.State // scratch space for states that are not in the table yet

	_ [16]byte // pads to a multiple of a cache line, against false sharing
}

// cell is one of the states that an op uses.
type cell struct {
	slot  engine.Slot
	state *engine.State
	entry *entry // table entry of the state; nil if the state is in shard.fresh
}

// cellsInline is the maximum number of states for deciding an op without allocation.
const cellsInline = 4

// apply decides op and stores the changes. It returns the change of the total weight.
func (sh *shard) apply(hash uint32, op *backend.Op, now engine.Micros) (grown int) {
	var cellBuf [cellsInline]cell
	var stateBuf [cellsInline]*engine.State
	cells := sh.load(cellBuf[:0], hash, op)
	states := stateBuf[:0]
	for i := range cells {
		states = append(states, cells[i].state)
	}
	switch n := len(op.Limits); {
	case op.Penalty != nil:
		op.Decision = decideGated(op, states[n], states[:n], now)
	case op.Reserve != nil:
		op.Decision = decideReserving(op, states[n], states[:n], now)
	default:
		op.Decision = decide(op, states, now)
	}
	op.Err = nil
	return sh.store(cells, hash, &op.Key)
}

// load finds the states of op: those of its limits, in order, followed by that of its penalty or of its reservations, if any.
func (sh *shard) load(cells []cell, hash uint32, op *backend.Op) []cell {
	if need := len(op.Limits) + 1; cap(sh.fresh) < need {
		sh.fresh = make([]engine.State, 0, need)
	}
	sh.fresh = sh.fresh[:0]
	for i := range op.Limits {
		cells = append(cells, sh.cell(hash, &op.Key, op.Limits[i].Slot()))
	}
	if op.Penalty != nil {
		cells = append(cells, sh.cell(hash, &op.Key, engine.GateSlot))
	} else if op.Reserve != nil {
		cells = append(cells, sh.cell(hash, &op.Key, op.Limits[0].Slot().Reserved()))
	}
	return cells
}

// cell returns the state of a slot, a new one if the table has none.
func (sh *shard) cell(hash uint32, key *backend.Key, slot engine.Slot) cell {
	if e := sh.find(hashOf(hash, slot), key, slot); e != nil {
		if e.uses < maxUses {
			e.uses++
		}
		return cell{slot: slot, state: &e.state, entry: e}
	}
	sh.fresh = append(sh.fresh, engine.State{}) // never reallocates: load made room
	return cell{slot: slot, state: &sh.fresh[len(sh.fresh)-1]}
}

// store stores the states that are not empty and drops the others. It returns the change of the total weight.
func (sh *shard) store(cells []cell, hash uint32, key *backend.Key) (grown int) {
	dropped := false
	for i := range cells {
		c := &cells[i]
		if c.state.Empty() {
			dropped = dropped || c.entry != nil
			continue
		}
		if c.entry == nil {
			c.entry = sh.insert(hashOf(hash, c.slot), key, c.slot)
			c.entry.state, *c.state = *c.state, engine.State{}
		}
		w := weigh(&c.entry.state)
		grown += int(w) - int(c.entry.weight)
		c.entry.weight = w
		if end := c.entry.state.Expires(); end < c.entry.due {
			sh.reschedule(c.entry, end)
			sh.due.Store(int64(sh.first().due))
		}
	}
	if !dropped {
		return grown
	}
	for i := range cells { // after the loop above, because removals move entries
		e := sh.find(hashOf(hash, cells[i].slot), key, cells[i].slot)
		if e != nil && e.state.Empty() {
			grown -= int(e.weight)
			sh.remove(e)
		}
	}
	return grown
}

// weigh returns the weight of a state.
func weigh(s *engine.State) uint16 { return uint16(min(s.Weight(), math.MaxUint16)) }

// decide runs op on the states of its limits.
func decide(op *backend.Op, s []*engine.State, now engine.Micros) engine.Decision {
	switch op.Mode {
	case backend.Peek:
		return op.Limits.Peek(s, now, op.Take)
	case backend.Refund:
		return op.Limits.Refund(s, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return op.Limits.Reset(s, now)
	case backend.Take, backend.Settle:
	}
	return op.Limits.Take(s, now, op.Take)
}

// decideGated runs op on the states of its penalty and its limits.
func decideGated(op *backend.Op, gate *engine.State, s []*engine.State, now engine.Micros) engine.Decision {
	p := op.Penalty
	switch op.Mode {
	case backend.Peek:
		return p.Peek(gate, op.Limits, s, now, op.Take)
	case backend.Refund:
		return p.Refund(gate, op.Limits, s, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return p.Reset(gate, op.Limits, s, now, op.Mode == backend.ForceReset)
	case backend.Take, backend.Settle:
	}
	return p.Take(gate, op.Limits, s, now, op.Take)
}

// decideReserving runs op on the states of its reservations and its limit.
func decideReserving(op *backend.Op, open *engine.State, s []*engine.State, now engine.Micros) engine.Decision {
	r := op.Reserve
	switch op.Mode {
	case backend.Peek:
		return r.Peek(open, op.Limits, s, now, op.Take)
	case backend.Refund:
		return r.Refund(open, op.Limits, s, now, op.Take)
	case backend.Reset, backend.ForceReset:
		return r.Reset(open, op.Limits, s, now)
	case backend.Settle:
		return r.Settle(open, op.Limits, s, now, op.Take)
	case backend.Take:
	}
	return r.Take(open, op.Limits, s, now, op.Take)
}
