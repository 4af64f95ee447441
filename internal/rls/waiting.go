package rls

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

const (
	maxWaiting  = 4096             // calls that wait for their message, unless Config says otherwise
	messageTime = 10 * time.Second // from the headers of a call to the end of its message
	waitingTick = time.Second      // how often that is looked at
)

// waiting bounds the calls that wait for their message, in number and in time. A client that sends headers and nothing else
// would hold a goroutine for each of its calls, for ever. A timer or a context for each call would cost more than what is
// done here, so one timer, which runs only while there are calls, looks after all of them.
type waiting struct {
	most    int64
	calls   atomic.Int64
	running atomic.Bool // the timer
	flooded atomic.Bool // there was no room for a call, and half of those that wait have not ended since
	flood   func(on bool)
	shards  [16]waitingShard
}

// waitingShard is a doubly linked list of calls, in the order in which they came.
type waitingShard struct {
	mu          sync.Mutex
	first, last *arrival
	_           [40]byte // the next one has a cache line of its own
}

// enter counts a call, and reports whether there is room for it. If there is, leave must be called.
func (w *waiting) enter() (number int64, ok bool) {
	number = w.calls.Add(1)
	if number > w.most {
		w.calls.Add(-1)
		if !w.flooded.Load() && w.flooded.CompareAndSwap(false, true) {
			w.flood(true)
		}
		return 0, false
	}
	return number, true
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

// sweep ends the calls that have waited for too long. Those that have waited for a while are no longer in progress: the
// limit of such calls, which an overload lowers, is for calls that need this process.
func (w *waiting) sweep() {
	w.running.Store(false) // before the lists are read, so that no call is missed
	now, left := time.Now(), false
	for i := range w.shards {
		s := &w.shards[i]
		var over []grpc.ServerTransportStream
		s.mu.Lock()
		for a := s.first; a != nil; {
			next, waits := a.next, now.Sub(a.at)
			if waits >= waitingTick {
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
			end(stream)
		}
	}
	if w.flooded.Load() {
		if w.calls.Load() <= w.most/2 {
			w.flood(false)
			w.flooded.Store(false)
		} else {
			left = true
		}
	}
	if left {
		w.run()
	}
}

// end ends the call of a stream, whose handler then returns: its context is cancelled.
func end(stream grpc.ServerTransportStream) {
	if s, ok := stream.(interface{ WriteStatus(s *status.Status) error }); ok { // grpc's only one
		_ = s.WriteStatus(status.Convert(errNoMessage)) // fails only if the connection has
	}
}
