package overload

import (
	"container/heap"
	"sync"
)

const (
	// portion is what is worked on at a time, by each processor, while calls of domains below their share go first: about two calls of 16
	// descriptors. What has been read from one connection is not divided, though.
	portion = 1 << 10
	small   = 2 << 10 // bytes that are worked on at once: it takes no longer than to wait for a turn, and who asks for little waits for nobody
	each    = 128     // bytes for which a call or what has been read counts beside its own, since it takes time whatever its size
	older   = 4 << 10 // bytes less for which what has been read counts with each round that it waits
)

// AwaitRead must be called when size bytes have been read from the connection of c, before they are worked on; full says that there was
// no room for more. It returns at once unless the line is paced, and otherwise when it is their turn. Calls for one connection must
// follow each other.
//
// Where connections have always something to read, working on that takes the time of all that others wait for, one after the other: to
// be read, to be sent to the store, the store's answer and their own.
func (g *Gate) AwaitRead(c *Client, size int, full bool) {
	if size > small && g.line.paced.Load() && g.line.readers.join(c, size, full) {
		<-c.read
	}
}

// readers are the connections from which something has been read that nobody works on yet.
type readers struct {
	mu     sync.Mutex
	paced  bool
	rounds int // that have begun
	due    int // clients that go on in this round
	queue  bySize
	joined chan struct{} // somebody has, since this round has begun
}

// bySize is a heap of clients: those of which the least has been read are first. So who asks for little does not wait for others who ask
// for much. What has waited for some rounds is no longer behind what is smaller.
type bySize []*Client

// join has c wait for its turn, and reports whether there is anything to wait for.
func (r *readers) join(c *Client, size int, full bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.paced {
		return false
	}
	if c.read == nil {
		c.read = make(chan struct{}, 1)
	}
	c.due, c.full = c.full, full // there was more to read, so the round would not have it all otherwise
	if c.due {
		r.due++
	}
	c.size, c.order = size+each, r.rounds*older+size
	heap.Push(&r.queue, c)
	signal(r.joined)
	return true
}

// begin begins a round, in which all go on that wait now.
func (r *readers) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = true
	r.rounds++
	for _, c := range r.queue {
		c.due = true
	}
	r.due = len(r.queue)
	select {
	case <-r.joined:
	default:
	}
}

// next has clients go on that have so many bytes to work on, or one, and reports whether there are any left that go on in this round.
func (r *readers) next(bytes int) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for bytes > 0 && len(r.queue) > 0 {
		bytes -= r.queue[0].size
		r.release()
	}
	return r.due > 0
}

// end has all go on, and nobody wait any more.
func (r *readers) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = false
	for len(r.queue) > 0 {
		r.release()
	}
}

// release has the first one go on.
func (r *readers) release() {
	c := heap.Pop(&r.queue).(*Client) //nolint:forcetypeassert // there are no others
	if c.due {
		r.due--
	}
	c.read <- struct{}{}
}

// Len implements heap.Interface.
func (q bySize) Len() int { return len(q) }

// Less implements heap.Interface.
func (q bySize) Less(i, j int) bool { return q[i].order < q[j].order }

// Swap implements heap.Interface.
func (q bySize) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *bySize) Push(c any) { *q = append(*q, c.(*Client)) } //nolint:forcetypeassert // as above

// Pop implements heap.Interface.
func (q *bySize) Pop() any {
	end := len(*q) - 1
	c := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	return c
}
