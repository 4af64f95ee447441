package redis

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// quantum is the maximum number of first operations that a flow sends per turn, and separately the maximum of operations beyond the first
// quantum of their call. So no call waits for everything that another one has queued, and a small call does not wait for all of a large
// one.
const quantum = 16

// queue holds the operations that wait for a node. Flows take turns. Within a flow, the first quantum of each call is in the order of
// arrival; the operations beyond it have separate turns. The node's mutex guards everything except length.
type queue struct {
	length atomic.Int64 // operations
	flows  map[backend.Flow]*flow
	turn   *flow // current flow; flows with waiting operations form a ring
	last   *flow // flow before turn
	active int   // number of flows in the ring

	taken map[backend.Key]*item // scratch space of cut: the last expensive item of each key
}

// flow holds the waiting operations of one flow.
type flow struct {
	heads, tails list
	next         *flow // in the ring; nil if no operation waits
}

// list is a list of items. It excludes items that follow another one.
type list struct {
	first, last *item
	ops         int // number of operations, including those that follow the items
}

// push adds an item, the index-th operation of its call.
func (q *queue) push(it *item, index int) {
	f := q.flows[it.op.Flow]
	if f == nil {
		f = new(flow)
		if q.flows == nil {
			q.flows = map[backend.Flow]*flow{}
		}
		q.flows[it.op.Flow] = f
	}
	if f.next == nil {
		q.join(f)
	}
	l := &f.heads
	if index >= quantum {
		l = &f.tails
	}
	l.push(it)
	n := it.chained()
	l.ops += n
	q.length.Add(int64(n))
}

// join appends f to the ring.
func (q *queue) join(f *flow) {
	q.active++
	if q.turn == nil {
		q.turn, q.last, f.next = f, f, f
		return
	}
	f.next, q.last.next, q.last = q.turn, f, f
}

// skip ends the turn of the current flow. A flow without operations leaves the ring.
func (q *queue) skip() {
	f := q.turn
	if f.heads.ops+f.tails.ops > 0 {
		q.last, q.turn = f, f.next
		return
	}
	q.active--
	if f.next == f {
		q.turn, q.last = nil, nil
	} else {
		q.turn, q.last.next = f.next, f.next
	}
	f.next = nil
}

// remove removes an item from its list.
func (q *queue) remove(it *item) {
	n := it.chained()
	it.list.ops -= n
	q.length.Add(int64(-n))
	it.list.unlink(it)
}

// cut moves items from the queue to items until their operations, with those that follow them, reach the number most or the given weight.
func (q *queue) cut(items []*item, most, weight int) []*item {
	defer func() { clear(q.taken) }() // its items may be reused
	for q.turn != nil && most > 0 && weight > 0 {
		for _, l := range [...]*list{&q.turn.heads, &q.turn.tails} {
			for share := min(quantum, most); share > 0 && weight > 0 && l.first != nil; {
				it := l.first
				n := it.chained()
				q.remove(it)
				items = append(items, it)
				share -= n
				most -= n
				weight -= q.weight(it)
			}
		}
		q.skip()
	}
	return items
}

// ahead returns the approximate number of operations that would be sent before the last of n new ones of a call of flow id.
func (q *queue) ahead(id backend.Flow, n int) int {
	all := int(q.length.Load())
	f := q.flows[id]
	if f == nil {
		f = new(flow)
	}
	own, beside := f.heads.ops, f.tails.ops
	if n > quantum {
		own, beside = f.tails.ops+n-quantum, f.heads.ops+quantum
	}
	turns := own/quantum + 1
	others := q.active
	if f.next != nil {
		others--
	}
	return min(all, own+min(beside, turns*quantum)+others*turns*2*quantum)
}

func (l *list) push(it *item) {
	it.list = l
	it.prev, it.next = l.last, nil
	if l.last == nil {
		l.first = it
	} else {
		l.last.next = it
	}
	l.last = it
}

func (l *list) unlink(it *item) {
	if it.prev == nil {
		l.first = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		l.last = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next, it.list = nil, nil, nil
}

// chained returns the number of operations of an item and those that follow it.
func (it *item) chained() (n int) {
	for ; it != nil; it = it.follow {
		n++
	}
	return n
}

// weight returns the cost in Redis, in µs, of an item and those that follow it, in a batch with the items taken before.
func (q *queue) weight(it *item) (all int) {
	for head := it; it != nil; it = it.follow {
		own := weight(&it.op)
		if own > weightWindow { // a batch never has too many cheaper ones
			if last := q.taken[it.op.Key]; last != nil && it == head && sameTake(&last.op, &it.op) {
				own = 0 // will be merged
			}
			if q.taken == nil {
				q.taken = map[backend.Key]*item{}
			}
			q.taken[it.op.Key] = it
		}
		all += own
	}
	return all
}
