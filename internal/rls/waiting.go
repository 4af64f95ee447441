package rls

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	maxWaiting  = 4096                   // calls that wait for their message, unless Config says otherwise
	messageTime = 10 * time.Second       // from the headers of a call to the end of its message
	waitingTick = 100 * time.Millisecond // how often that is looked at
	// What a caller sends comes together. A call that has waited for so long without its message gives way to a new one, if
	// there is no room: or a client that sends headers and nothing else would shut everybody else out.
	givesWay = 50 * time.Millisecond
	// The same call, unless this process is very late, waits for its caller, and so is not in progress. The limit of calls in
	// progress, which an overload lowers, is for those that need this process: one short stall, and a few idle calls would
	// shut everybody out for as long as they counted.
	idles    = 200 * time.Millisecond
	calm     = time.Second // without a call for which there was no room, until a flood is over
	fairWait = 4           // calls that may have waited for so long on a connection that gets room at the cost of others
	// A connection that has one in so many of the calls that may wait has too many, however short they have: when thousands
	// come at once, it gives way to those that ask for little. Where more connections share them, half an equal share is.
	crowd    = 16
	recount  = 10 * time.Millisecond // between two looks at who has how many, if the last one helped too few
	mostWays = 64                    // calls that give way between two looks at who has how many, since each lives on until its handler returns
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
	census  atomic.Int64                        // when a call for which there was no room had it counted who has how many, in nanoseconds
	counted atomic.Int64                        // when that was last done, by a call for which there was no room or without
	hogs    atomic.Pointer[map[*peer.Peer]bool] // connections that had too many then; nil if there is no flood
	ways    atomic.Int64                        // calls that have given way since
	shards  [16]waitingShard
}

// waitingShard is a doubly linked list of calls, in the order in which they came.
type waitingShard struct {
	mu          sync.Mutex
	first, last *arrival
	_           [40]byte // the next one has a cache line of its own
}

// enter counts a call, and reports whether there is room for it, which there may be because another one gives way. If there
// is, leave must be called. In a flood there is none for connections that have part in it.
func (w *waiting) enter(ctx context.Context) (shard uint8, room, another bool) {
	if w.flooded.Load() && w.hog(ctx) {
		return 0, false, false
	}
	number := w.calls.Add(1)
	if number <= w.most {
		return uint8(number % int64(len(w.shards))), true, false
	}
	if !w.flooded.Load() && w.flooded.CompareAndSwap(false, true) {
		w.flood(true)
		w.run() // which sees when it ends
	}
	now := time.Now()
	every := givesWay
	if hogs := w.hogs.Load(); hogs == nil || len(*hogs) == 0 || w.ways.Load() >= mostWays {
		every = recount
	}
	if last := w.census.Load(); now.UnixNano()-last >= int64(every) && w.census.CompareAndSwap(last, now.UnixNano()) {
		w.count(now)
	}
	if !w.hog(ctx) && w.ways.Add(1) <= mostWays {
		if shard, ok := w.displace(now); ok {
			return shard, true, true
		}
	}
	w.calls.Add(-1)
	return 0, false, false
}

// hog reports whether a call comes from a connection that has part in a flood.
func (w *waiting) hog(ctx context.Context) bool {
	hogs := w.hogs.Load()
	if hogs == nil {
		return false
	}
	p, _ := peer.FromContext(ctx) // the same for all calls of a connection
	return (*hogs)[p]
}

// count looks which connections have too many calls that have waited for a while, or too many at all.
func (w *waiting) count(now time.Time) {
	type calls struct{ slow, all int64 }
	waits, total := map[*peer.Peer]calls{}, int64(0)
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		for a := s.first; a != nil; a = a.next {
			p, _ := peer.FromContext(a.Context)
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
	fair := max(min(w.most/crowd, total/int64(max(2*len(waits), 1))), fairWait)
	hogs := map[*peer.Peer]bool{}
	for p, n := range waits {
		if n.slow > fairWait || n.all > fair {
			hogs[p] = true
		}
	}
	w.counted.Store(now.UnixNano())
	w.hogs.Store(&hogs)
	w.ways.Store(0)
}

// displace ends a call that has waited for a while, or of a connection that has too many, and returns the shard in which it
// was.
func (w *waiting) displace(now time.Time) (shard uint8, ok bool) {
	for i := range w.shards {
		s := &w.shards[i]
		s.mu.Lock()
		a := s.first
		if a == nil || now.Sub(a.at) < givesWay && !w.hog(a.Context) || !a.waits.Swap(false) {
			s.mu.Unlock()
			continue
		}
		stream := a.stream
		s.remove(a)
		s.mu.Unlock()
		a.leaveGate()
		w.leave()
		go end(stream, errWaiting) // it takes locks of which this connection may hold one
		return uint8(i), true
	}
	return 0, false
}

func (w *waiting) leave() { w.calls.Add(-1) }

// watch ends the call once it has waited for too long, unless forget is called first.
func (w *waiting) watch(a *arrival, stream grpc.ServerTransportStream) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	a.listed, a.stream, a.previous = true, stream, s.last
	if s.last == nil {
		s.first = a
	} else {
		s.last.next = a
	}
	s.last = a
	s.mu.Unlock()
	w.run()
}

// forget undoes watch.
func (w *waiting) forget(a *arrival) {
	s := &w.shards[a.shard]
	s.mu.Lock()
	if a.listed {
		s.remove(a)
	}
	s.mu.Unlock()
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

// sweep ends the calls that have waited for too long, and has the gate forget those that idle.
func (w *waiting) sweep() {
	w.running.Store(false) // before the lists are read, so that no call is missed
	now, left := time.Now(), false
	for i := range w.shards {
		s := &w.shards[i]
		var over []grpc.ServerTransportStream
		s.mu.Lock()
		for a := s.first; a != nil; {
			next, waits := a.next, now.Sub(a.at)
			if waits >= idles {
				a.leaveGate()
			}
			if waits >= messageTime {
				over = append(over, a.stream)
				s.remove(a)
			}
			a = next
		}
		left = left || s.first != nil
		s.mu.Unlock()
		for _, stream := range over {
			end(stream, errNoMessage)
		}
	}
	if w.flooding(now) || left {
		w.run()
	}
}

// flooding reports whether a flood goes on. While it does, it looks every now and then who has part in it.
func (w *waiting) flooding(now time.Time) bool {
	switch {
	case !w.flooded.Load():
		return false
	case w.calls.Load() <= w.most/2 && now.UnixNano()-w.census.Load() >= int64(calm):
		w.flood(false)
		w.flooded.Store(false)
		w.hogs.Store(nil)
		return false
	case now.UnixNano()-w.counted.Load() >= int64(calm):
		w.count(now)
	}
	return true
}

// end ends the call of a stream with an error. Its handler then returns, since its context is cancelled.
func end(stream grpc.ServerTransportStream, err error) {
	if s, ok := stream.(interface{ WriteStatus(s *status.Status) error }); ok { // grpc's only one
		_ = s.WriteStatus(status.Convert(err)) // fails only if the connection has
	}
}
