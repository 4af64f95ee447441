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
	// One of so many parts of the turns that are to be handed out is a portion of them, if that is more: where many are dismissed they
	// would wait for longer than their callers do.
	parts = 8
	// overtakings is how often a client may go on before others in a round, or somebody had far more read than others for a few calls.
	overtakings = 4
	// small is what is worked on at once: it takes no longer than to wait for a turn, and who asks for little waits for nobody.
	small = 2 << 10
	each  = 128 // bytes for which a call counts beside its own, since it takes time whatever its size
)

// Read is what has been read from a connection at once.
type Read struct {
	Size  int
	Full  bool // there was no room for more
	First bool // a call of a domain below its share has come with it
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
	round  int64         // how many have begun
	due    int           // clients that go on in this round
	ahead  []*Client     // with calls of domains below their share, which go on before others, a few times in a round
	queue  []*Client     // the others, in the order in which they were read
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
	if what.First && r.overtakes(c) {
		r.ahead = append(r.ahead, c)
	} else {
		r.queue = append(r.queue, c)
	}
	signal(r.joined)
	return true
}

// overtakes reports whether c may go on before others once more in this round.
func (r *readers) overtakes(c *Client) bool {
	if c.round != r.round {
		c.round, c.came = r.round, 0
	}
	c.came++
	return c.came <= overtakings
}

// begin begins a round, in which all go on that wait now.
func (r *readers) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = true
	r.round++
	for _, all := range [][]*Client{r.ahead, r.queue} {
		for _, c := range all {
			c.due = true
		}
	}
	r.due = len(r.ahead) + len(r.queue)
	select {
	case <-r.joined:
	default:
	}
}

// next has clients go on that have so many bytes to work on, or one, and reports whether there are any left that go on in this round.
func (r *readers) next(bytes int) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, all := range []*[]*Client{&r.ahead, &r.queue} {
		n := 0
		for ; bytes > 0 && n < len(*all); n++ {
			bytes -= (*all)[n].size
		}
		*all = r.release(*all, n)
	}
	return r.due > 0
}

// end has all go on, and nobody wait any more.
func (r *readers) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paced = false
	r.ahead, r.queue = r.release(r.ahead, len(r.ahead)), r.release(r.queue, len(r.queue))
}

// release has the first n go on, and returns the others.
func (r *readers) release(all []*Client, n int) []*Client {
	for _, c := range all[:n] {
		if c.due {
			r.due--
		}
		c.read <- struct{}{}
	}
	return slices.Delete(all, 0, n)
}
