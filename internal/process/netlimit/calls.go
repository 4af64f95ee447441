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
	maxWaiting  = 4096                  // default limit of calls of a kind that wait for their message
	sweepEvery  = 20 * time.Millisecond // interval while calls wait
	heavySweeps = 2                     // after this many sweeps, the bytes of a waiting call count; others are likely to end soon
	slowSweeps  = 3                     // after this many sweeps, the connection of a waiting call may be closed in favour of others
	lateSweeps  = 500                   // after this many sweeps, 10 s, a waiting message is overdue
	calmSweeps  = 50                    // after this many sweeps, 1 s, without a shed call, a flood is over; also the interval of untaken
	crowdedPart = 2                     // beyond 1/crowdedPart of the limit, each connection gets at most an equal share
	firstPart   = 8                     // 1/firstPart of the limit is reserved for first calls of connections
	maxPending  = 24 << 20              // bytes of messages and metadata of waiting calls; a message may have 4 MiB
	maxOwed     = 64 << 20              // bytes of answers that clients have not taken for a second
	owedCall    = 4 << 10               // bytes of a call whose answer is not taken, in addition to the answer
	maxStreams  = 16                    // open streams of one connection, for methods without a natural end
)

// Kind is a kind of call with its own limit.
type Kind uint8

// The kinds.
const (
	Hot   Kind = iota // the main method
	Other             // health, reflection, administration
	Later             // not a call, but a later message of a stream, which may take any time

	kinds = iota
)

// Call is a call that waits for its message. It must not be copied. It is an element of its connection's list, in order of arrival.
// For first messages, the number of received bytes is not known by call. Instead, it is the number of bytes read from the
// connection since the call, minus complete messages. The result includes headers of other calls, which does no harm during the at
// most ten seconds of a first message. A stream may wait for a later message for hours, so Hold counts those bytes exactly.
type Call struct {
	ctx            context.Context //nolint:containedctx // of the call, to detect its end
	conn           *Conn
	kind           Kind
	listed         bool
	came           int   // number of sweeps before the call
	read           int64 // bytes read from the connection before the call
	completed      int64 // bytes of complete messages that arrived after this call, of calls before its successor in the list
	metadata       int64 // size in bytes, computed by the first sweep
	message        int64 // received bytes of a later message
	previous, next *Call
}

// waiting is the set of a listener's calls that wait for their message. A client that sends only headers would occupy a
// goroutine for each call, and memory for partial messages. Hence calls and bytes are limited. While calls wait, a sweep
// every 20 ms closes the connections that use the most.
type waiting struct {
	most     int
	observer Observer

	mu       sync.Mutex
	calls    [kinds]int
	on       [kinds]int // connections with waiting calls
	conns    []*Conn    // connections to check in the next sweep
	sweeping bool       // a sweep is scheduled
	sweeps   int
	shed     int // calls shed since the last sweep
	calm     int // sweeps since a call was shed
	flooded  bool
}

// held is the waiting calls of one connection. The mutex of waiting guards its fields.
type held struct {
	opening list // calls that wait for their first message
	later   list // streams that wait for a later message
	calls   [kinds]int
	owed    int64 // minimum of Conn.owed in the current second
	listed  bool  // the connection is in waiting.conns
	closed  bool
}

// list is a list of calls in order of arrival.
type list struct {
	first, last *Call
	completed   int64 // sum over the calls
}

// list returns the list for a kind of call.
func (h *held) list(kind Kind) *list {
	if kind == Later {
		return &h.later
	}
	return &h.opening
}

// Begin counts a call whose headers have arrived, and returns false if there is no room for it. If it returns true, the
// caller must call Received or End.
func (c *Conn) Begin(ctx context.Context, kind Kind, call *Call) bool {
	w := &c.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	ok := kind == Later || w.room(c, kind)
	switch {
	case !ok:
		w.shed++
	case !c.held.closed: // otherwise the call is about to end
		*call = Call{ctx: ctx, conn: c, kind: kind, came: w.sweeps, read: c.read.Load()}
		w.add(call)
	}
	w.list(c)
	return ok
}

// AnswerQueued records an answer of size bytes to write. The caller must call AnswerDone when it has been written or
// dropped. The client decides how fast it reads, and grpc keeps the rest of the answer with its call.
func (c *Conn) AnswerQueued(size int) {
	n := int64(size) + owedCall
	if c.owed.Add(n) > n {
		return // the next sweep already checks the connection
	}
	w := &c.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	w.list(c)
}

// AnswerDone records that an answer of size bytes was written or dropped.
func (c *Conn) AnswerDone(size int) { c.owed.Add(-int64(size) - owedCall) }

// room reports whether there is room for another call. Beyond w.most/crowdedPart, only connections below their equal share have
// room. This share shrinks as connections come, so the last 1/firstPart is for connections without a waiting call.
func (w *waiting) room(c *Conn, kind Kind) bool {
	n, has := w.calls[kind], c.held.calls[kind]
	return n < w.most/crowdedPart || has < w.most/(w.on[kind]+1) && !w.full(kind) || has == 0 && n < w.most
}

// full reports whether only first calls of connections have room.
func (w *waiting) full(kind Kind) bool { return w.calls[kind] >= w.most-w.most/firstPart }

// Received records that the message of c, of size bytes, has arrived, which makes its connection active.
func (c *Call) Received(size int) {
	if c.conn != nil {
		c.conn.Active()
	}
	c.done(size)
}

// done removes c, whose message had size bytes.
func (c *Call) done(size int) {
	if c.conn == nil {
		return // the connection was closed before the call began
	}
	w := &c.conn.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.listed {
		w.remove(c, int64(size))
	}
}

// Hold counts n more bytes of c, a later message of a stream.
func (c *Call) Hold(n int) {
	if c.conn == nil {
		return
	}
	w := &c.conn.listener.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	c.message += int64(n)
}

// End records that c has ended. After Received, it does nothing.
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

// list adds a connection to those that the next sweep checks, and schedules the sweep.
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

// remove removes a call whose message of size bytes is complete. The remaining calls hold the bytes read since the first of them,
// minus complete messages. Some of these bytes may belong to removed calls.
func (w *waiting) remove(c *Call, size int64) {
	h, completed := &c.conn.held, c.completed+size
	l := h.list(c.kind)
	switch {
	case c.previous != nil:
		c.previous.next = c.next
		c.previous.completed += completed
	case c.next != nil:
		completed = max(0, completed-(c.next.read-c.read))
		c.next.completed += completed
	default:
		completed = 0
	}
	l.completed += completed - c.completed
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

// end removes all calls of a closed connection.
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

// load is the resources that a connection's waiting calls hold.
type load struct {
	conn   *Conn
	calls  [kinds]int
	oldest int   // age of the oldest call, in sweeps
	late   int   // age of the oldest call in opening, in sweeps
	bytes  int64 // of incomplete messages and metadata
}

// look returns the load of a connection.
func (w *waiting) look(conn *Conn) load {
	l, h := load{conn: conn}, &conn.held
	l.late = w.count(&h.opening, &l)
	l.oldest = max(l.late, w.count(&h.later, &l))
	if first := h.opening.first; first != nil {
		l.bytes += max(0, conn.read.Load()-first.read-h.opening.completed)
	}
	l.calls = h.calls
	return l
}

// count adds the metadata and messages of a list's calls to l, and returns the age of the oldest call in sweeps. It removes calls
// that have ended: grpc ends some without running their handler, for example for an unknown encoding.
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

// metadataSize returns the approximate size of a call's metadata in bytes.
func metadataSize(ctx context.Context) (size int64) {
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		for _, value := range values {
			size += int64(len(key) + len(value) + 32)
		}
	}
	return size
}

// sweep checks the waiting calls, and schedules the next sweep while there are any. It measures time in sweeps, so that calls are
// not overdue because this process was stalled.
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
			_ = c.Close() // the client notices
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

// late returns the connections with an overdue message.
func (*waiting) late(all []load) (conns []*Conn) {
	for _, l := range all {
		if l.late > lateSweeps {
			conns = append(conns, l.conn)
		}
	}
	return conns
}

// heavy returns the connections with the most bytes if the total exceeds maxPending, and counts their calls as shed. Limiting the
// number of calls is not enough: each of 4,096 waiting calls may have a message of 4 MiB.
func (w *waiting) heavy(all []load) (conns []*Conn) {
	all = slices.DeleteFunc(slices.Clone(all), func(l load) bool { return l.oldest < heavySweeps })
	slices.SortFunc(all, func(a, b load) int { return cmp.Compare(b.bytes, a.bytes) })
	total := int64(0)
	for _, l := range all {
		total += l.bytes
	}
	if total <= maxPending {
		return nil
	}
	for i := 0; i < len(all) && total > maxPending/2; i++ {
		conns = append(conns, all[i].conn)
		total -= all[i].bytes
		for _, n := range all[i].calls {
			w.shed += n
		}
	}
	return conns
}

// untaken returns the connections that owed the most during the last second if the total exceeds maxOwed. It starts the next
// second.
func (w *waiting) untaken() (conns []*Conn) {
	total := int64(0)
	for _, c := range w.conns {
		total += c.held.owed
	}
	if total > maxOwed {
		conns = slices.SortedFunc(slices.Values(w.conns), func(a, b *Conn) int { return cmp.Compare(b.held.owed, a.held.owed) })
		for n := 0; n < len(conns); n++ {
			if total -= conns[n].held.owed; total <= maxOwed/2 {
				conns = conns[:n+1]
			}
		}
	}
	for _, c := range w.conns {
		c.held.owed = c.owed.Load()
	}
	return conns
}

// slow returns the connection with the most calls of a kind among those whose oldest call has waited for slowSweeps. It
// returns nil unless the kind is full.
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

// Open counts a stream of a connection until closed is called. ok is false if there are too many.
func (c *Conn) Open() (closed func(), ok bool) {
	if c.streams.Add(1) > maxStreams {
		c.streams.Add(-1)
		return nil, false
	}
	return func() { c.streams.Add(-1) }, true
}
