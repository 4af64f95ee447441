package overload

import (
	"slices"
	"sync"
)

const (
	// portion is how many bytes of the turns are handed out at a time, for each processor, while calls of domains below their share go
	// first: about two of calls with 16 descriptors. Of what has been read it is four times as much, but what was read from one
	// connection is not divided.
	portion  = 1 << 10
	portions = 4
	// small is what is worked on at once: it takes no longer than to wait for a turn, and who asks for little waits for nobody.
	small = 2 << 10
	each  = 128 // bytes for which a call counts beside its own, since it takes time whatever its size
)

// AwaitRead must be called when size bytes have been read from the connection of c, before they are worked on; full says that there was
// no room for more. It returns at once unless the line is paced and they are many, and otherwise when it is their turn. Calls for one
// connection must follow each other.
//
// Where connections have always something to read, working on that takes the time of all that others wait for, one after the other: to
// be read, to be sent to the store, the store's answer and their own.
func (g *Gate) AwaitRead(c *Client, size int, full bool) {
	if size > small && g.line.paced.Load() && g.line.readers.join(c, size, full) {
		<-c.read
	}
}

// readers are the connections from which something has been read that nobody works on yet, in the order in which it was read.
type readers struct {
	mu     sync.Mutex
	paced  bool
	due    int // clients that go on in this round
	queue  []*Client
	joined chan struct{} // somebody has, since this round has begun
}

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
	c.size = size
	r.queue = append(r.queue, c)
	signal(r.joined)
	return true
}

// begin begins a round, in which all go on that wait now.
func (r *readers) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = true
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
	n := 0
	for ; bytes > 0 && n < len(r.queue); n++ {
		bytes -= r.queue[n].size
	}
	r.release(n)
	return r.due > 0
}

// end has all go on, and nobody wait any more.
func (r *readers) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = false
	r.release(len(r.queue))
}

// release has the first n go on.
func (r *readers) release(n int) {
	for _, c := range r.queue[:n] {
		if c.due {
			r.due--
		}
		c.read <- struct{}{}
	}
	r.queue = slices.Delete(r.queue, 0, n)
}
