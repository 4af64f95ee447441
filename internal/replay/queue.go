package replay

import (
	"container/heap"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// queue is a priority queue by time. Items with equal times keep their order. The zero value is empty. It implements [heap.Interface].
type queue[T any] struct {
	items  []timed[T]
	pushed uint64
}

type timed[T any] struct {
	at     engine.Micros
	number uint64
	item   T
}

func (q *queue[T]) push(at engine.Micros, item T) {
	q.pushed++
	heap.Push(q, timed[T]{at, q.pushed, item})
}

// pop removes and returns the earliest item. The queue must not be empty.
func (q *queue[T]) pop() T {
	first, _ := heap.Pop(q).(timed[T])
	return first.item
}

// Len returns the number of items.
func (q *queue[T]) Len() int      { return len(q.items) }
func (q *queue[T]) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *queue[T]) Less(i, j int) bool {
	a, b := &q.items[i], &q.items[j]
	return a.at < b.at || a.at == b.at && a.number < b.number
}

func (q *queue[T]) Push(x any) {
	item, _ := x.(timed[T])
	q.items = append(q.items, item)
}

func (q *queue[T]) Pop() any { //nolint:ireturn // container/heap has it so
	last := len(q.items) - 1
	item := q.items[last]
	q.items[last] = timed[T]{}
	q.items = q.items[:last]
	return item
}
