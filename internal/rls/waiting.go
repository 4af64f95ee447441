package rls

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	maxWaiting  = 4096                  // calls that wait for their message, unless Config says otherwise
	messageTime = 10 * time.Second      // from the headers of a call to the end of its message
	waitingTick = 20 * time.Millisecond // how often that is looked at, and what has come meanwhile
	// What a caller sends comes together. A call that has waited for so long without its message gives way to a new one, if
	// there is no room: or a client that sends headers and nothing else would shut everybody else out.
	givesWay = 50 * time.Millisecond
	// The same call, unless this process is very late, waits for its caller, and so is not in progress. The limit of calls in
	// progress, which an overload lowers, is for those that need this process: one short stall, and a few idle calls would
	// shut everybody out for as long as they counted.
	idles    = 200 * time.Millisecond
	calm     = time.Second // without a call for which there was no room, until a flood is over
	fairWait = 4           // calls that may have waited for so long on a connection that gets room at the cost of others
	// A connection that has more than one in so many of the calls that may wait, or than half an equal share if that is less,
	// gives way to those that have fewer, however short its calls have waited: when thousands come at once, somebody who asks
	// for little is let in.
	crowd   = 16
	recount = 10 * time.Millisecond // between two looks at who has how many
	// Headers alone are small, and each makes work: hundreds come in one read. While so many calls wait, or one in manyPart of those that may,
	// so little is read at once of connections on which more than a few do.
	many       = 512
	manyPart   = 8
	fewWaiting = 64
	littleRead = 1 << 10
	mostWays   = 256          // calls that have given way, since each lives on until its handler returns
	oneWays    = mostWays / 4 // that give way to those of one connection between two looks, which would show how many it has
)

// waiting bounds the calls that wait for their message, in number and in time. A client that sends headers and nothing else
// would hold a goroutine for each of its calls, for ever. A timer or a context for each call would cost more than what is
// done here, so one timer, which runs only while there are calls, looks after all of them.
type waiting struct {
	most    int64
	calls   atomic.Int64
	running atomic.Bool // the timer
	flooded atomic.Bool // there was no room for a call of late, or half of those that waited then have not ended since
	flood   func(on bool)
	refused func()                 // a call was ended for what is on its way
	others  *others                // which are looked at with these
	asked   atomic.Int64           // when a call for which there was no room had it counted who has how many, in nanoseconds
	counted atomic.Int64           // when that was last done, by a call for which there was no room or without
	census  atomic.Pointer[census] // what it said; nil if there is no flood
	ways    atomic.Int64           // calls that have given way, and whose handlers have not returned
	shards  [16]waitingShard
}

// census says which connections had many of the calls that wait, and what has come of that since.
type census struct {
	over map[*peer.Peer]bool // those that give way to others; true for those that have so many that no call of theirs is let in

	mu   sync.Mutex
	ways map[*peer.Peer]int // calls that were to give way to those of others
}

// waitingShard is a doubly linked list of calls, in the order in which they came. It has those, too, whose handler has not begun: grpc ends
// some calls without ever running it, such as those with an encoding that it does not know.
type waitingShard struct {
	mu          sync.Mutex
	first, last *arrival
	_           [40]byte // the next one has a cache line of its own
}

// enter counts a call of a connection, which may be nil, and reports whether there is room for it, which there may be because another one
// gives way. If there is, leave must be called. In a flood there is none for connections that have part in it.
func (w *waiting) enter(ctx context.Context, of *boundedConn) (shard uint8, room, another bool) {
	if w.flooded.Load() && w.hog(ctx) {
		return 0, false, false
	}
	number := w.calls.Add(1)
	if number <= w.most || w.tidy() {
		of.waits(1)
		return uint8(number % int64(len(w.shards))), true, false
	}
	if !w.flooded.Load() && w.flooded.CompareAndSwap(false, true) {
		w.flood(true)
		w.run() // which sees when it ends
	}
	now := time.Now()
	if last := w.asked.Load(); now.UnixNano()-last >= int64(recount) && w.asked.CompareAndSwap(last, now.UnixNano()) {
		w.count(now)
	}
	if c := w.census.Load(); c.way(connection(ctx)) {
		if shard, ok := w.displace(c, now); ok {
			of.waits(1)
			return shard, true, true
		}
	}
	w.calls.Add(-1)
	return 0, false, false
}

// connection returns what stands for the connection that a call came on: it is the same for all of them.
func connection(ctx context.Context) *peer.Peer {
	p, _ := peer.FromContext(ctx)
	return p
}

// hog reports whether a call comes from a connection that has part in a flood.
func (w *waiting) hog(ctx context.Context) bool {
	c := w.census.Load()
	return c != nil && c.over[connection(ctx)]
}

// way reports whether another call may have to give way to one of connection p. A nil census knows of nobody that has many.
func (c *census) way(p *peer.Peer) bool {
	if c == nil {
		return true
	}
	if _, over := c.over[p]; over {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ways[p]++
	return c.ways[p] <= oneWays
}

// gives reports whether a call that has waited for so long gives way to such a one.
func (c *census) gives(a *arrival, waited time.Duration) bool {
	if waited >= givesWay || c == nil {
		return waited >= givesWay
	}
	_, over := c.over[connection(a.Context)]
	return over
}

// count looks which connections have too many calls that have waited for a while, or too many at all.
func (w *waiting) count(now time.Time) {
	type calls struct{ slow, all int64 }
	waits, total := map[*peer.Peer]calls{}, int64(0)
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		for a := s.first; a != nil; a = a.next {
			if a.stream == nil {
				continue
			}
			p := connection(a.Context)
			n := waits[p]
			n.all++
			total++
			if now.Sub(a.at) >= givesWay {
				n.slow++
			}
			waits[p] = n
		}
		s.mu.Unlock()
	}
	fair := min(w.most/crowd, total/int64(max(2*len(waits), 1)))
	c := &census{over: map[*peer.Peer]bool{}, ways: map[*peer.Peer]int{}}
	for p, n := range waits {
		hog := n.slow > fairWait || n.all > max(fair, fairWait)
		if hog || n.all > fair {
			c.over[p] = hog
		}
	}
	w.counted.Store(now.UnixNano())
	w.census.Store(c)
}

// displace ends a call that has waited for a while, or of a connection that has too many, and returns the shard in which it
// was.
func (w *waiting) displace(c *census, now time.Time) (shard uint8, ok bool) {
	if w.ways.Add(1) > mostWays {
		w.ways.Add(-1)
		return 0, false
	}
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		a := s.begun()
		if a == nil || !c.gives(a, now.Sub(a.at)) || !a.waits.Swap(false) {
			s.mu.Unlock()
			continue
		}
		stream := a.stream
		s.remove(a)
		a.gaveWay = true
		s.mu.Unlock()
		a.leaveGate()
		a.origin.conn.receives(false)
		w.leave(a.origin.conn)
		go end(stream, errWaiting) // it takes locks of which this connection may hold one
		return uint8(i), true
	}
	w.ways.Add(-1)
	return 0, false
}

// skipped is how many calls whose handler has not begun are passed over for one whose handler has, where it matters how long that takes.
const skipped = 8

// begun returns a call that came early, and whose handler has begun; nil if there is none, or it came late.
func (s *waitingShard) begun() *arrival {
	a := s.first
	for range skipped {
		if a == nil || a.stream != nil {
			return a
		}
		a = a.next
	}
	return nil
}

// tidy has nobody count the first calls as far as they have ended before their handler has begun, and reports whether there is room then.
func (w *waiting) tidy() (room bool) {
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		for s.first != nil && s.gone(s.first) {
		}
		s.mu.Unlock()
	}
	return w.calls.Load() <= w.most
}

// gone has nobody count a call whose handler has not begun and whose caller has gone, and reports whether that is so.
func (s *waitingShard) gone(a *arrival) bool {
	if a.stream != nil || a.Context.Err() == nil {
		return false
	}
	s.remove(a)
	a.leave()
	return true
}

// leave undoes enter.
func (w *waiting) leave(of *boundedConn) {
	w.calls.Add(-1)
	of.waits(-1)
}

// takeTurn returns how many bytes are to be read of a connection at once, size at most. Where many calls wait for their message, whoever can
// run does before it is read, and if many of its own do, or none has had one of late, it is read a little at a time: so nobody waits until all
// that somebody else has sent is worked on.
func (w *waiting) takeTurn(of *boundedConn, size int) int {
	if n := w.calls.Load() + w.others.calls.Load(); n < many && n*manyPart < w.most {
		return size
	}
	runtime.Gosched() // calls whose message has come get it meanwhile
	if of.received.Load() && of.waiting.Load() <= fewWaiting {
		return size
	}
	return min(size, littleRead)
}

// list has a call that has entered looked after.
func (w *waiting) list(a *arrival) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	a.listed, a.previous = true, s.last
	if s.last == nil {
		s.first = a
	} else {
		s.last.next = a
	}
	s.last = a
	s.mu.Unlock()
	w.run()
}

// watch ends a call that is listed once it has waited for too long, unless forget is called first. It is not listed any more if nobody waits
// for it.
func (w *waiting) watch(a *arrival, stream grpc.ServerTransportStream) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.listed {
		a.stream = stream
	}
}

// unlist undoes list for a call that has ended, unless watch has been called.
func (w *waiting) unlist(a *arrival) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.listed && a.stream == nil {
		s.remove(a)
	}
}

// forget undoes watch, and list.
func (w *waiting) forget(a *arrival) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	if a.listed {
		s.remove(a)
	}
	gaveWay := a.gaveWay
	s.mu.Unlock()
	if gaveWay {
		w.ways.Add(-1)
	}
}

// remove takes a, which must be in the list, out of it.
func (s *waitingShard) remove(a *arrival) {
	if a.previous == nil {
		s.first = a.next
	} else {
		a.previous.next = a.next
	}
	if a.next == nil {
		s.last = a.previous
	} else {
		a.next.previous = a.previous
	}
	a.listed, a.stream, a.previous, a.next = false, nil, nil, nil
}

// run starts the timer, unless it runs.
func (w *waiting) run() {
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		time.AfterFunc(waitingTick, w.sweep)
	}
}

// sweep looks after the calls that wait, and again soon while too much is on its way.
func (w *waiting) sweep() {
	for w.look(time.Now()) {
		time.Sleep(onWayTick)
	}
	w.running.Store(false) // before these are read, so that no call is missed
	if w.flooded.Load() || w.calls.Load() > 0 || w.others.any() {
		w.run()
	}
}

// look ends the calls that have waited for too long, has the gate forget those that idle, and ends those of connections on
// which too much is on its way, which it reports.
func (w *waiting) look(now time.Time) bool {
	w.watchFlood(now)
	far := w.others.onWay()
	w.end(errNoMessage, func(a *arrival) bool {
		waits := now.Sub(a.at)
		if waits >= idles && a.leaveGate() {
			a.origin.conn.receives(false)
		}
		if a.looks == 0 {
			a.head = headOf(a.Context)
		}
		far.add(a.origin, a.head)
		a.looks = min(a.looks+1, 2)
		return waits >= messageTime
	})
	guilty := far.guilty()
	if guilty == nil {
		return false
	}
	w.cut(guilty)
	w.others.cut(guilty)
	return true
}

// cut ends the calls of connections that two looks have seen: their messages have not come at once.
func (w *waiting) cut(guilty map[*boundedConn]bool) {
	ended := w.end(errOnWay, func(a *arrival) bool { return a.looks > 1 && guilty[a.origin.conn] })
	for range ended {
		w.refused()
	}
}

// end ends the calls that wait and are over, with an error, and returns how many they were. A call's shard is locked while over looks
// at it. Calls whose handler has not begun are not ended, but nobody counts them any more once their caller has gone.
func (w *waiting) end(err error, over func(*arrival) bool) (ended int) {
	for i := range w.shards {
		s := &w.shards[i]
		var streams []grpc.ServerTransportStream
		s.mu.Lock()
		for a := s.first; a != nil; {
			next := a.next
			if !s.gone(a) && a.stream != nil && over(a) {
				streams = append(streams, a.stream)
				s.remove(a)
			}
			a = next
		}
		s.mu.Unlock()
		for _, stream := range streams {
			end(stream, err)
		}
		ended += len(streams)
	}
	return ended
}

// watchFlood sees when a flood is over. While it goes on, it looks every now and then who has part in it.
func (w *waiting) watchFlood(now time.Time) {
	switch {
	case !w.flooded.Load():
	case w.calls.Load() <= w.most/2 && now.UnixNano()-w.asked.Load() >= int64(calm):
		w.flood(false)
		w.flooded.Store(false)
		w.census.Store(nil)
	case now.UnixNano()-w.counted.Load() >= int64(calm):
		w.count(now)
	}
}

// end ends the call of a stream with an error. Its handler then returns, since its context is cancelled.
func end(stream grpc.ServerTransportStream, err error) {
	if s, ok := stream.(interface{ WriteStatus(s *status.Status) error }); ok { // grpc's only one
		_ = s.WriteStatus(status.Convert(err)) // fails only if the connection has
	}
}
