package redis

import (
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// Each flow may send quantum operations in turn, and as many of what a call asks beyond its own first quantum. So no call
// waits for all that another one has queued, and a call for a few descriptors does not wait for all of a large one.
const quantum = 16

// queue holds the operations that wait for a node. Flows take turns. Within a flow the first operations of each call
// come in the order of arrival, and what exceeds a quantum of a call has turns of its own. The node's mutex guards all
// but length.
type queue struct {
	length atomic.Int64 // operations
	flows  map[backend.Flow]*flow
	turn   *flow // whose turn it is; the ones that wait form a ring
	last   *flow // the one before turn
	active int   // how many are in the ring

	taken map[backend.Key]*item // by cut: the last one of each key that is not light
}

// flow is what waits of one flow.
type flow struct {
	heads, tails list
	next         *flow // in the ring; nil if nothing waits
}

// list is a list of items. Items that follow another one are not in it themselves.
type list struct {
	first, last *item
	ops         int // with those that follow the items
}

// push adds it, the index-th operation of its call.
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

// join makes f the last in the ring.
func (q *queue) join(f *flow) {
	q.active++
	if q.turn == nil {
		q.turn, q.last, f.next = f, f, f
		return
	}
	f.next, q.last.next, q.last = q.turn, f, f
}

// skip gives the next flow its turn. One with nothing left leaves the ring.
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

// remove removes it, wherever it is.
func (q *queue) remove(it *item) {
	n := it.chained()
	it.list.ops -= n
	q.length.Add(int64(-n))
	it.list.unlink(it)
}

// cut removes items and appends them to items, until they and those that follow them number most or more, or have at least
// the given weight.
func (q *queue) cut(items []*item, most, weight int) []*item {
	defer func() { clear(q.taken) }() // its items may soon be other calls'
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

// ahead returns about how many operations would be sent before the last of n new ones of a call of flow id.
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

// chained returns how many operations it and those that follow it are.
func (it *item) chained() (n int) {
	for ; it != nil; it = it.follow {
		n++
	}
	return n
}

// weight returns what it and those that follow it cost Redis, in µs, in a batch with those that were taken before.
func (q *queue) weight(it *item) (all int) {
	for head := it; it != nil; it = it.follow {
		own := weight(&it.op)
		if own > weightWindow { // of others there are never too many in a batch
			if last := q.taken[it.op.Key]; last != nil && it == head && sameTake(&last.op, &it.op) {
				own = 0 // it will be merged
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
