package netlimit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxWaiting  = 4096                  // calls that wait for their message, unless Bounds says otherwise
	sweepEvery  = 20 * time.Millisecond // while calls wait
	slowSweeps  = 3                     // sweeps that have found a call waiting, so that its client is slow: it may be closed for others
	lateSweeps  = 500                   // 10 s of them: the message should have come
	crowdedPart = 2                     // while more than one part in so many of the calls that may wait do, each connection gets an equal share at most
	mostPending = 24 << 20              // bytes of messages and metadata of calls that wait; a message may have 4 MiB
	calm        = time.Second           // without a call that was refused, until a flood is over
	closeEvery  = 10 * time.Millisecond // a connection is closed for others
	maxStreams  = 16                    // open streams of one connection, of methods whose calls have no end
)

// Kind is a kind of calls. Those of one do not take the room of another.
type Kind uint8

// The kinds.
const (
	Hot   Kind = iota // the method that a fleet calls
	Other             // health, reflection, administration
	Later             // a later message of a stream, which may take as long as it likes

	kinds = iota
)

// Bounds bounds calls that wait for their message. A client that sends headers and nothing else would hold a goroutine for
// each of its calls, and the memory of what it has sent of its messages.
type Bounds struct {
	MaxWaiting int           // of each kind; 0 means 4096
	Refused    func()        // is called for each call that is refused; may be nil
	Flood      func(on bool) // is called when calls begin to be refused, and when that is over; may be nil

	// Metadata returns how many bytes the metadata of a call has; nil counts none.
	Metadata func(ctx context.Context) int64
}

// Waiting counts the calls of all connections that wait for their message, and closes connections for others. Its methods
// are safe for concurrent use.
type Waiting struct {
	most    int64
	bounds  Bounds
	running atomic.Bool // the sweep

	listener atomic.Pointer[Listener]
	waiting  [kinds]atomic.Int64
	conns    [kinds]atomic.Int64 // that these came on

	mu      sync.Mutex
	flooded bool
	refused time.Time // last
	closed  time.Time // last
}

// calls are those of one connection that wait for their message, in the order in which they came.
type calls struct {
	mu          sync.Mutex
	first, last *Call
	waiting     [kinds]int64
	base        int64        // bytes that had been read when no call waited
	received    int64        // bytes of messages since then
	streams     atomic.Int64 // open
	closed      bool
}

// Call is a call from its headers until its message has come. It must not be copied.
type Call struct {
	ctx            context.Context //nolint:containedctx // of the call, to see when it has ended
	conn           *Conn
	waiting        *Waiting
	kind           Kind
	listed         bool
	sweeps         int   // that have found it
	metadata       int64 // bytes, once a sweep has found it
	previous, next *Call
}

// NewWaiting returns a Waiting with those bounds.
func NewWaiting(b Bounds) *Waiting {
	if b.Refused == nil {
		b.Refused = func() {}
	}
	if b.Flood == nil {
		b.Flood = func(bool) {}
	}
	if b.Metadata == nil {
		b.Metadata = func(context.Context) int64 { return 0 }
	}
	return &Waiting{most: int64(cmp.Or(b.MaxWaiting, maxWaiting)), bounds: b}
}

// Serve has w look after the connections of l.
func (w *Waiting) Serve(l *Listener) { w.listener.Store(l) }

// Begin counts a call whose headers have come on a connection, which may be nil, and reports whether there is room for it.
// If there is, Received or End must be called.
func (w *Waiting) Begin(ctx context.Context, conn *Conn, kind Kind, c *Call) bool {
	if n := w.waiting[kind].Add(1); n > w.most/crowdedPart && kind != Later && !w.admit(conn, kind, n) {
		w.waiting[kind].Add(-1)
		return false
	}
	c.ctx, c.conn, c.waiting, c.kind = ctx, conn, w, kind
	if conn == nil {
		c.listed = true
		return true
	}
	switch conn.calls.push(c, conn) {
	case 0: // the connection has been closed meanwhile, so the call ends
		w.waiting[kind].Add(-1)
		return true
	case 1:
		w.conns[kind].Add(1)
	}
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		time.AfterFunc(sweepEvery, w.sweep)
	}
	return true
}

// admit reports whether there is room for another call while n wait: for connections that have less than an equal share
// and, beyond the bound, if another one is closed for it.
func (w *Waiting) admit(conn *Conn, kind Kind, n int64) bool {
	if conn != nil {
		w.forget(conn.calls.tidy())
	}
	if conn != nil && conn.calls.of(kind) >= max(1, w.most/(w.conns[kind].Load()+1)) {
		if n > w.most {
			w.relieve(kind)
		}
		w.refuse()
		return false
	}
	if n <= w.most || w.relieve(kind) {
		return true
	}
	w.refuse()
	return false
}

// refuse takes note of a call that is refused.
func (w *Waiting) refuse() {
	w.bounds.Refused()
	w.mu.Lock()
	w.refused = time.Now()
	flood := !w.flooded
	w.flooded = true
	w.mu.Unlock()
	if flood {
		w.bounds.Flood(true)
	}
}

// relieve closes the connection that has most of the calls of a kind, of those whose calls are slow, and reports whether
// there was one.
func (w *Waiting) relieve(kind Kind) bool {
	w.mu.Lock()
	now := time.Now()
	again := now.Sub(w.closed) >= closeEvery
	if again {
		w.closed = now
	}
	w.mu.Unlock()
	if !again {
		return false
	}
	var slowest *Conn
	most := int64(0)
	w.each(func(c *Conn) {
		if n := c.calls.slow(kind); n > most {
			slowest, most = c, n
		}
	})
	if slowest == nil {
		return false
	}
	_ = slowest.Close() // its client is told by that
	return true
}

// each calls f with each connection.
func (w *Waiting) each(f func(*Conn)) {
	if l := w.listener.Load(); l != nil {
		l.each(f)
	}
}

// Received tells that the message of c has come, of so many bytes.
func (c *Call) Received(size int) { c.end(int64(size)) }

// End tells that c has ended. It does nothing if its message has come.
func (c *Call) End() { c.end(0) }

func (c *Call) end(size int64) {
	if c.conn == nil {
		if c.listed {
			c.listed = false
			c.waiting.waiting[c.kind].Add(-1)
		}
		return
	}
	if removed, left := c.conn.calls.remove(c, size); removed {
		c.waiting.waiting[c.kind].Add(-1)
		if left == 0 {
			c.waiting.conns[c.kind].Add(-1)
		}
	}
}

// Open counts a stream on a connection, which may be nil, until closed is called. It returns false if there are too many.
func (c *Conn) Open() (closed func(), ok bool) {
	if c == nil {
		return func() {}, true
	}
	if c.calls.streams.Add(1) > maxStreams {
		c.calls.streams.Add(-1)
		return nil, false
	}
	return func() { c.calls.streams.Add(-1) }, true
}

// sweep looks after the calls that wait, and goes on while there are any. Time counts in sweeps: none is late because this
// process was.
func (w *Waiting) sweep() {
	type heavy struct {
		conn  *Conn
		bytes int64
		calls int64
	}
	var all []heavy
	total := int64(0)
	w.each(func(c *Conn) {
		s := c.calls.sweep(c, w.bounds.Metadata)
		w.forget(s.ended, s.waiting)
		switch {
		case s.found == 0:
			return
		case s.oldest > lateSweeps:
			_ = c.Close()
			return
		}
		if s.found > 1 { // what has just come is about to be worked on
			all = append(all, heavy{c, s.pending, s.waiting[Hot] + s.waiting[Other]})
			total += s.pending
		}
	})
	if total > mostPending {
		slices.SortFunc(all, func(a, b heavy) int { return cmp.Compare(b.bytes, a.bytes) })
		for i := 0; i < len(all) && total > mostPending/2; i++ {
			total -= all[i].bytes
			for range all[i].calls {
				w.refuse()
			}
			_ = all[i].conn.Close()
		}
	}
	w.calm()
	w.running.Store(false) // before these are read, so that no call is missed
	if w.waiting[Hot].Load()+w.waiting[Other].Load()+w.waiting[Later].Load() > 0 || w.inFlood() {
		if w.running.CompareAndSwap(false, true) {
			time.AfterFunc(sweepEvery, w.sweep)
		}
	}
}

// forget does not count calls any more, of a connection on which so many are left.
func (w *Waiting) forget(ended, left [kinds]int64) {
	for kind, n := range ended {
		if n == 0 {
			continue
		}
		w.waiting[kind].Add(-n)
		if left[kind] == 0 {
			w.conns[kind].Add(-1)
		}
	}
}

// calm sees when a flood is over.
func (w *Waiting) calm() {
	w.mu.Lock()
	over := w.flooded && time.Since(w.refused) > calm && w.waiting[Hot].Load() <= w.most/2 && w.waiting[Other].Load() <= w.most/2
	w.flooded = w.flooded && !over
	w.mu.Unlock()
	if over {
		w.bounds.Flood(false)
	}
}

func (w *Waiting) inFlood() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flooded
}

// push adds a call that waits, and returns how many of its kind do; 0 if the connection has been closed.
func (s *calls) push(c *Call, conn *Conn) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0
	}
	if s.first == nil {
		s.base, s.received = conn.read.Load(), 0
		s.first = c
	} else {
		s.last.next, c.previous = c, s.last
	}
	s.last = c
	c.listed = true
	s.waiting[c.kind]++
	return s.waiting[c.kind]
}

// remove removes a call whose message of so many bytes has come. It reports whether it was there, and how many of its kind
// are left.
func (s *calls) remove(c *Call, size int64) (removed bool, left int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received += size
	if !c.listed {
		return false, 0
	}
	s.unlink(c)
	return true, s.waiting[c.kind]
}

func (s *calls) unlink(c *Call) {
	if c.previous == nil {
		s.first = c.next
	} else {
		c.previous.next = c.next
	}
	if c.next == nil {
		s.last = c.previous
	} else {
		c.next.previous = c.previous
	}
	c.listed, c.previous, c.next = false, nil, nil
	s.waiting[c.kind]--
}

// end ends all calls, as their connection has.
func (s *calls) end() {
	s.mu.Lock()
	var w *Waiting
	var ended [kinds]int64
	s.closed = true
	for s.first != nil {
		w = s.first.waiting
		ended[s.first.kind]++
		s.unlink(s.first)
	}
	s.mu.Unlock()
	if w != nil {
		w.forget(ended, [kinds]int64{})
	}
}

// tidy removes the first calls as far as they have ended, and returns how many those were and how many are left.
func (s *calls) tidy() (ended, left [kinds]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.first != nil && s.first.ctx.Err() != nil {
		ended[s.first.kind]++
		s.unlink(s.first)
	}
	return ended, s.waiting
}

// of returns how many calls of a kind wait.
func (s *calls) of(kind Kind) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting[kind]
}

// slow returns how many calls of a kind wait, if the oldest has for a while; otherwise 0.
func (s *calls) slow(kind Kind) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := s.first; c != nil && c.sweeps >= slowSweeps; c = c.next {
		if c.kind == kind {
			return s.waiting[kind]
		}
	}
	return 0
}

// swept is what a sweep finds of a connection.
type swept struct {
	found   int // sweeps that have found the oldest call; 0 if none waits
	oldest  int // the same, of those that must not be late
	pending int64
	waiting [kinds]int64
	ended   [kinds]int64
}

// sweep looks after the calls of a connection. It removes those that have ended: grpc ends some without running their
// handler, such as those with an encoding that it does not know.
func (s *calls) sweep(conn *Conn, metadata func(context.Context) int64) (found swept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := s.first; c != nil; {
		next := c.next
		if c.ctx.Err() != nil {
			s.unlink(c)
			found.ended[c.kind]++
		} else {
			c.sweeps++
			if c.sweeps == 1 {
				c.metadata = metadata(c.ctx)
			}
			found.pending += c.metadata
			found.found = max(found.found, c.sweeps)
			if c.kind != Later {
				found.oldest = max(found.oldest, c.sweeps)
			}
		}
		c = next
	}
	found.waiting = s.waiting
	if s.first != nil {
		found.pending += max(0, conn.read.Load()-s.base-s.received)
	}
	return found
}
