package overload

import (
	"container/heap"
	"sync"
)

// portion is how many bytes of messages are worked on at a time, by each processor, while calls of domains below their share go first:
// those of two or three calls of 16 descriptors. What has been read from one connection is not divided, though: up to 16 KiB.
const portion = 768

// Read must be called when so many bytes have been read from the connection of c, and returns when they are to be worked on.
//
// That is at once unless the line is paced. Where a connection has always something to read, working on it would take the time
// of all that others wait for, one after the other: to be read, to be sent to the store, the store's answer and their own.
func (g *Gate) Read(c *Client, size int) {
	if g.line.paced.Load() && g.line.readers.join(c, size) {
		<-c.read
	}
}

// readers are the connections from which something has been read that nobody works on yet.
type readers struct {
	mu     sync.Mutex
	paced  bool
	rounds int64 // that have begun
	queue  byRound
	came   chan struct{} // somebody has joined since it was last received from
}

// byRound is a heap of clients: those that have waited since an earlier round are first, and of the same round those of which the least
// has been read. So who asks for little does not wait for others who ask for much, and nobody waits for longer than a round.
type byRound []*Client

// join has c wait for its turn, and reports whether there is anything to wait for.
func (r *readers) join(c *Client, size int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.paced {
		return false
	}
	if c.read == nil {
		c.read = make(chan struct{}, 1)
	}
	c.round, c.size = r.rounds, size
	heap.Push(&r.queue, c)
	signal(r.came)
	return true
}

// begin begins a round.
func (r *readers) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = true
	r.rounds++
}

// next has clients go on until they have so many bytes to work on, and returns how many these are.
func (r *readers) next(bytes int) (sum int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for sum < bytes && len(r.queue) > 0 {
		sum += r.queue[0].size
		r.release()
	}
	return sum
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
func (r *readers) release() { heap.Pop(&r.queue).(*Client).read <- struct{}{} } //nolint:forcetypeassert // there are no others

// Len implements heap.Interface.
func (q byRound) Len() int { return len(q) }

// Less implements heap.Interface.
func (q byRound) Less(i, j int) bool {
	if q[i].round != q[j].round {
		return q[i].round < q[j].round
	}
	return q[i].size < q[j].size
}

// Swap implements heap.Interface.
func (q byRound) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

// Push implements heap.Interface.
func (q *byRound) Push(c any) { *q = append(*q, c.(*Client)) } //nolint:forcetypeassert // as above

// Pop implements heap.Interface.
func (q *byRound) Pop() any {
	end := len(*q) - 1
	c := (*q)[end]
	(*q)[end] = nil
	*q = (*q)[:end]
	return c
}
