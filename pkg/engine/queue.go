package engine

import "slices"

// queue is a list that grows at the end and shrinks at the front, in place.
type queue[E any] struct {
	buf  []E
	head int
}

func (q *queue[E]) len() int { return len(q.buf) - q.head }

// live returns the elements, oldest first. The slice is valid until the queue changes.
func (q *queue[E]) live() []E { return q.buf[q.head:] }

// last returns the newest element. The queue must not be empty.
func (q *queue[E]) last() *E { return &q.buf[len(q.buf)-1] }

func (q *queue[E]) push(e E) { q.buf = append(q.buf, e) }

// cut removes all but the n oldest elements.
func (q *queue[E]) cut(n int) {
	clear(q.buf[q.head+n:])
	q.buf = q.buf[:q.head+n]
}

// drop removes the n oldest elements. It frees memory if the queue is much shorter than its capacity.
func (q *queue[E]) drop(n int) {
	clear(q.buf[q.head : q.head+n])
	q.head += n
	n = q.len()
	switch {
	case q.head <= n:
		return
	case cap(q.buf) > 64 && cap(q.buf) > 8*n:
		q.buf = slices.Clone(q.live())
	default:
		copy(q.buf, q.live())
		clear(q.buf[n:])
		q.buf = q.buf[:n]
	}
	q.head = 0
}

// delete removes the elements from the i-th oldest up to, but excluding, the j-th.
func (q *queue[E]) delete(i, j int) {
	q.buf = slices.Delete(q.buf, q.head+i, q.head+j)
}
