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
	// parts is how many portions the turns that are to be handed out are at most: where many are dismissed they would wait for longer
	// than their callers do.
	parts = 8
	// small is what is worked on at once: it takes no longer than to wait for a turn, and who asks for little waits for nobody.
	small = 2 << 10
	each  = 128 // bytes for which a call counts beside its own, since it takes time whatever its size
)

// Read is what has been read from a connection at once.
type Read struct {
	Size  int
	Full  bool // there was no room for more
	First bool // a call of a domain below its share is among it
}

// AwaitRead must be called when something has been read from the connection of c, before it is worked on. It returns at once unless the
// line is paced and it is much, and otherwise when it is its turn. Calls for one connection must follow each other.
//
// Where connections have always something to read, working on that takes the time of all that others wait for, one after the other: to
// be read, to be sent to the store, the store's answer and their own.
func (g *Gate) AwaitRead(c *Client, r Read) {
	if r.Size > small && g.line.paced.Load() && g.line.readers.join(c, r) {
		<-c.read
	}
}

// readers are the connections from which something has been read that nobody works on yet.
type readers struct {
	mu     sync.Mutex
	paced  bool
	due    int           // clients that go on in this round
	queue  []*Client     // in the order in which they were read
	ahead  []*Client     // those of them with calls of domains below their share, which go on in turns with the others
	passed bool          // the last that went on was one of these
	joined chan struct{} // somebody has, since this round has begun
}

// join has c wait for its turn, and reports whether there is anything to wait for.
func (r *readers) join(c *Client, what Read) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.paced {
		return false
	}
	if c.read == nil {
		c.read = make(chan struct{}, 1)
	}
	c.due, c.full = c.full, what.Full // there was more to read, so the round would not have it all otherwise
	if c.due {
		r.due++
	}
	c.size = what.Size
	if what.First {
		r.ahead = append(r.ahead, c)
	} else {
		r.queue = append(r.queue, c)
	}
	signal(r.joined)
	return true
}

// begin begins a round, in which all go on that wait now.
func (r *readers) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = true
	for _, all := range [][]*Client{r.ahead, r.queue} {
		for _, c := range all {
			c.due = true
		}
	}
	r.due = r.waiting()
	select {
	case <-r.joined:
	default:
	}
}

// waiting returns how many wait.
func (r *readers) waiting() int { return len(r.ahead) + len(r.queue) }

// next has clients go on that have so many bytes to work on, or one, and reports whether there are any left that go on in this round.
func (r *readers) next(bytes int) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for bytes > 0 && r.waiting() > 0 {
		bytes -= r.release()
	}
	return r.due > 0
}

// end has all go on, and nobody wait any more.
func (r *readers) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = false
	for r.waiting() > 0 {
		r.release()
	}
}

// release has the one go on whose turn it is, of those that wait, and returns what it has to work on.
func (r *readers) release() (bytes int) {
	from := &r.queue
	r.passed = len(r.ahead) > 0 && (!r.passed || len(r.queue) == 0)
	if r.passed {
		from = &r.ahead
	}
	c := (*from)[0]
	*from = slices.Delete(*from, 0, 1)
	if c.due {
		r.due--
	}
	bytes = c.size // which is the next read's once it goes on
	c.read <- struct{}{}
	return bytes
}
