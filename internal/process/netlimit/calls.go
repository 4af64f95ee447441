package netlimit

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
)

const (
	maxWaiting  = 4096                  // calls of a kind that wait for their message, unless Config says otherwise
	sweepEvery  = 20 * time.Millisecond // while calls wait
	heavySweeps = 2                     // that have found a call waiting, after which its bytes count: a younger call is about to be worked on
	slowSweeps  = 3                     // that have found a call waiting, after which its connection may be closed for others
	lateSweeps  = 500                   // 10 s of them: the message should have come
	calmSweeps  = 50                    // 1 s of them: without a call that was shed, after which a flood is over, or with answers not taken
	crowdedPart = 2                     // while more than one part in so many of the calls that may wait do, each connection gets an equal share at most
	firstPart   = 8                     // one part in so many of the room is for the first waiting call of a connection
	mostPending = 24 << 20              // bytes of messages and metadata of calls that wait; a message may have 4 MiB
	mostOwed    = 64 << 20              // bytes of answers that clients have not taken for a second
	owedCall    = 4 << 10               // bytes that a call takes whose answer is not taken, beside the answer
	maxStreams  = 16                    // open streams of one connection, of methods whose calls have no end
)

// Kind is a kind of calls. Each kind has room of its own.
type Kind uint8

// The kinds.
const (
	Hot   Kind = iota // the method that a fleet calls
	Other             // health, reflection, administration
	Later             // not a call, but a later message of a stream, which may take any time

	kinds = iota
)

// Call is a call from its headers until its message has come. It must not be copied. It is an element of a list of its connection's
// calls, in the order in which they came. How many bytes it holds of its first message is not counted by call: it follows from how
// many its connection has read since, less those of whole messages. These include the headers of other calls, which is harmless for
// the ten seconds that a first message may take. A stream may wait for a later one for hours, so Hold counts the bytes of those.
type Call struct {
	ctx            context.Context //nolint:containedctx // of the call, to see when it has ended
	conn           *Conn
	kind           Kind
	listed         bool
	came           int   // sweeps before it
	read           int64 // bytes that had been read of its connection before it
	whole          int64 // bytes that came after it, of whole messages of calls before the next one in the list
	metadata       int64 // bytes, once a sweep has found it
	message        int64 // bytes of a later message that have come
	previous, next *Call
}

// waiting are the calls of a listener that wait for their message. A client that sends headers and nothing else would hold a
// goroutine for each of its calls, and the memory of what it has sent of its messages. So there are bounds on their number
// and their bytes. A sweep closes the connections that take most, every 20 ms while calls wait.
type waiting struct {
	most     int
	observer Observer

	mu       sync.Mutex
	calls    [kinds]int
	on       [kinds]int // connections
	conns    []*Conn    // that have had calls since the last sweep
	sweeping bool       // there will be another sweep
	sweeps   int
	shed     int // calls since the last sweep
	calm     int // sweeps since a call was shed
	flooded  bool
}

// held has the waiting calls of one connection. Its fields are guarded by the mutex of waiting.
type held struct {
	opening list // of calls that wait for their first message
	later   list // of streams that wait for a later one
	calls   [kinds]int
	owed    int64 // the least that the client owed to take in this second
	listed  bool  // in waiting.conns
	closed  bool
}

// list has calls in the order in which they came.
type list struct {
	first, last *Call
	whole       int64 // the sum of that of all calls
}

// list returns the list of the calls of a kind.
func (h *held) list(kind Kind) *list {
	if kind == Later {
		return &h.later
	}
	return &h.opening
}

// Begin counts a call whose headers have come, and reports whether there is room for it. If there is, Received or End must be
// called.
func (c *Conn) Begin(ctx context.Context, kind Kind, call *Call) bool {
	w := &c.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := kind == Later || w.room(c, kind)
	switch {
	case !ok:
		w.shed++
	case !c.held.closed: // otherwise the call ends
		*call = Call{ctx: ctx, conn: c, kind: kind, came: w.sweeps, read: c.read.Load()}
		w.add(call)
	}
	w.list(c)
	return ok
}

// Owe notes that the client is to take an answer of so many bytes. Once it has been written, or never will be, Took must be called. A client
// chooses how much it takes, and grpc keeps the rest, with its call.
func (c *Conn) Owe(size int) {
	n := int64(size) + owedCall
	if c.owed.Add(n) > n {
		return // so that the next sweep looks at it
	}
	w := &c.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list(c)
}

// Took notes that an answer of so many bytes is gone.
func (c *Conn) Took(size int) { c.owed.Add(-int64(size) - owedCall) }

// room reports whether there is room for another call. Once room is scarce, there is only some for connections with less than an
// equal share. A share shrinks as others come, so the last of the room is for connections without a waiting call.
func (w *waiting) room(c *Conn, kind Kind) bool {
	n, has := w.calls[kind], c.held.calls[kind]
	return n < w.most/crowdedPart || has < w.most/(w.on[kind]+1) && !w.full(kind) || has == 0 && n < w.most
}

// full reports whether there is room for nothing but the first call of a connection.
func (w *waiting) full(kind Kind) bool { return w.calls[kind] >= w.most-w.most/firstPart }

// Received notes that the message of c, or a later one of its stream, has come, with so many bytes. So its connection is active.
func (c *Call) Received(size int) {
	if c.conn != nil {
		c.conn.Active()
	}
	c.done(size)
}

// done notes that c does not wait any more, whose message had so many bytes.
func (c *Call) done(size int) {
	if c.conn == nil {
		return // its connection was closed before it began
	}
	w := &c.conn.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.listed {
		w.remove(c, int64(size))
	}
}

// Hold counts n more bytes of c, which is a later message of a stream.
func (c *Call) Hold(n int) {
	if c.conn == nil {
		return
	}
	w := &c.conn.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	c.message += int64(n)
}

// End notes that c has ended. It does nothing if its message has come.
func (c *Call) End() { c.done(0) }

func (w *waiting) add(c *Call) {
	h := &c.conn.held
	l := h.list(c.kind)
	if l.first == nil {
		l.first = c
	} else {
		l.last.next, c.previous = c, l.last
	}
	l.last, c.listed = c, true
	if h.calls[c.kind]++; h.calls[c.kind] == 1 {
		w.on[c.kind]++
	}
	w.calls[c.kind]++
}

// list has the next sweep, which there will be, look at a connection.
func (w *waiting) list(c *Conn) {
	if !c.held.listed {
		c.held.listed, c.held.owed = true, 0
		w.conns = append(w.conns, c)
	}
	if !w.sweeping {
		w.sweeping = true
		time.AfterFunc(sweepEvery, w.sweep)
	}
}

// remove removes a call, whose message of so many bytes has come whole. The calls that are left hold the bytes that were read since
// the first of them came, less whole messages. Some of those bytes may have belonged to calls before it.
func (w *waiting) remove(c *Call, size int64) {
	h, whole := &c.conn.held, c.whole+size
	l := h.list(c.kind)
	switch {
	case c.previous != nil:
		c.previous.next = c.next
		c.previous.whole += whole
	case c.next != nil:
		whole = max(0, whole-(c.next.read-c.read))
		c.next.whole += whole
	default:
		whole = 0
	}
	l.whole += whole - c.whole
	if c.previous == nil {
		l.first = c.next
	}
	if c.next == nil {
		l.last = c.previous
	} else {
		c.next.previous = c.previous
	}
	c.listed, c.previous, c.next = false, nil, nil
	if h.calls[c.kind]--; h.calls[c.kind] == 0 {
		w.on[c.kind]--
	}
	w.calls[c.kind]--
}

// end removes all calls of a connection, which has been closed.
func (w *waiting) end(c *Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.held.closed = true
	for _, l := range []*list{&c.held.opening, &c.held.later} {
		for l.first != nil {
			w.remove(l.first, 0)
		}
	}
}

// load says what the waiting calls of a connection hold.
type load struct {
	conn   *Conn
	calls  [kinds]int
	oldest int   // sweeps that have found the oldest call
	late   int   // the same, of those that must not be late
	bytes  int64 // of messages that have not come whole, and of metadata
}

// look returns what the waiting calls of a connection hold.
func (w *waiting) look(conn *Conn) load {
	l, h := load{conn: conn}, &conn.held
	l.late = w.count(&h.opening, &l)
	l.oldest = max(l.late, w.count(&h.later, &l))
	if first := h.opening.first; first != nil {
		l.bytes += max(0, conn.read.Load()-first.read-h.opening.whole)
	}
	l.calls = h.calls
	return l
}

// count adds to l what the calls of a list hold each, and returns how many sweeps have found the oldest. It removes those that have
// ended: grpc ends some without running their handler, such as those with an encoding that it does not know.
func (w *waiting) count(calls *list, l *load) (oldest int) {
	for c := calls.first; c != nil; {
		next := c.next
		if c.ctx.Err() != nil {
			w.remove(c, 0)
			c = next
			continue
		}
		found := w.sweeps - c.came
		if found == 1 {
			c.metadata = metadataSize(c.ctx)
		}
		l.bytes += c.metadata + c.message
		oldest = max(oldest, found)
		c = next
	}
	return oldest
}

// metadataSize returns about how many bytes the metadata of a call takes.
func metadataSize(ctx context.Context) (size int64) {
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		for _, value := range values {
			size += int64(len(key) + len(value) + 32)
		}
	}
	return size
}

// sweep checks the waiting calls, and goes on while there are any. It counts time in sweeps, so that no call is late because this
// process was.
func (w *waiting) sweep() {
	w.mu.Lock()
	w.sweeps++
	var all []load
	w.conns = slices.DeleteFunc(w.conns, func(c *Conn) bool {
		l, owed := w.look(c), c.owed.Load()
		if c.held.calls != [kinds]int{} {
			all = append(all, l)
		}
		c.held.owed = min(c.held.owed, owed)
		c.held.listed = owed > 0 && !c.held.closed || c.held.calls != [kinds]int{}
		return !c.held.listed
	})
	closing := append(w.late(all), w.heavy(all)...)
	if w.sweeps%calmSweeps == 0 {
		closing = append(closing, w.untaken()...)
	}
	if w.flooded {
		closing = append(closing, w.slow(all, Hot), w.slow(all, Other))
	}
	shed, before := w.shed, w.flooded
	w.shed, w.calm = 0, w.calm+1
	if shed > 0 {
		w.flooded, w.calm = true, 0
	}
	if w.calm > calmSweeps && max(w.calls[Hot], w.calls[Other]) <= w.most/crowdedPart {
		w.flooded = false
	}
	flooded := w.flooded
	w.sweeping = len(w.conns) > 0 || flooded
	again := w.sweeping
	w.mu.Unlock()

	for _, c := range closing {
		if c != nil {
			_ = c.Close() // its client notices by that
		}
	}
	if shed > 0 {
		w.observer.Shed(shed)
	}
	if flooded != before {
		w.observer.Flood(flooded)
	}
	if again {
		time.AfterFunc(sweepEvery, w.sweep)
	}
}

// late returns the connections with a call whose message should have come.
func (*waiting) late(all []load) (conns []*Conn) {
	for _, l := range all {
		if l.late > lateSweeps {
			conns = append(conns, l.conn)
		}
	}
	return conns
}

// heavy returns the connections that hold the most bytes, if all together hold too many. Their calls count as shed. A bound on the
// number of calls does not suffice: each of 4,096 waiting calls may have a message of 4 MiB.
func (w *waiting) heavy(all []load) (conns []*Conn) {
	all = slices.DeleteFunc(slices.Clone(all), func(l load) bool { return l.oldest < heavySweeps })
	slices.SortFunc(all, func(a, b load) int { return cmp.Compare(b.bytes, a.bytes) })
	total := int64(0)
	for _, l := range all {
		total += l.bytes
	}
	if total <= mostPending {
		return nil
	}
	for i := 0; i < len(all) && total > mostPending/2; i++ {
		conns = append(conns, all[i].conn)
		total -= all[i].bytes
		for _, n := range all[i].calls {
			w.shed += n
		}
	}
	return conns
}

// untaken returns the connections that have owed most for a second, if all together have owed too much, and begins another second.
func (w *waiting) untaken() (conns []*Conn) {
	total := int64(0)
	for _, c := range w.conns {
		total += c.held.owed
	}
	if total > mostOwed {
		conns = slices.SortedFunc(slices.Values(w.conns), func(a, b *Conn) int { return cmp.Compare(b.held.owed, a.held.owed) })
		for n := 0; n < len(conns); n++ {
			if total -= conns[n].held.owed; total <= mostOwed/2 {
				conns = conns[:n+1]
			}
		}
	}
	for _, c := range w.conns {
		c.held.owed = c.owed.Load()
	}
	return conns
}

// slow returns the connection with the most calls of a kind, of those whose oldest call has waited for a while. It returns nil
// while there is room for more than a few further calls.
func (w *waiting) slow(all []load, kind Kind) (conn *Conn) {
	if !w.full(kind) {
		return nil
	}
	most := 0
	for _, l := range all {
		if l.late >= slowSweeps && l.calls[kind] > most {
			conn, most = l.conn, l.calls[kind]
		}
	}
	return conn
}

// Open counts a stream on a connection until closed is called. It returns false if there are too many.
func (c *Conn) Open() (closed func(), ok bool) {
	if c.streams.Add(1) > maxStreams {
		c.streams.Add(-1)
		return nil, false
	}
	return func() { c.streams.Add(-1) }, true
}
