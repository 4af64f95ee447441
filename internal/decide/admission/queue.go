package admission

import (
	"slices"
	"time"
)

const (
	standsAfter   = 5                     // the queue stands once it has not been empty for so many times the patience of callers
	dropPart      = 4                     // while it stands, a call waits for one part in so many of its caller's patience
	roomFor       = 1                     // calls may wait for each one that may be in flight
	replyMargin   = 2 * time.Millisecond  // what an answer needs to reach its caller
	usualPatience = 20 * time.Millisecond // Envoy's default timeout, until more is known of callers
	longPatience  = time.Second           // the most that a deadline counts as patience: calls must not fill the queue for longer
	leastPatience = 5 * time.Millisecond  // callers who have less must not make rounds shorter
	surgeEnds     = time.Second           // without a call that waits, after which what is known of a surge is forgotten
	averageOf     = 64                    // calls, in moving averages
)

// waiting is a call that waits for its turn.
type waiting struct {
	Call

	came     time.Duration
	deadline time.Duration
	patience time.Duration // from its headers to its deadline
	turn     chan Verdict  // gets one
}

// core decides who has a turn, on whatever clock it is given: all times are since its beginning. It is not safe for
// concurrent use.
//
// Its queue is that of Facebook ("Fail at Scale", Maurer 2015): while it is not empty for long, it only bridges a burst,
// and calls are served in order. Once it stands, the newest are served first, since they have the most time, and a call
// that waits for longer than a part of its caller's patience is dropped, as CoDel does (Nichols and Jacobson,
// "Controlling Queue Delay", 2012).
type core struct {
	limit    limit
	queue    queue
	patience time.Duration // of callers, on average, at least the least one
	emptied  time.Duration // when a call last came to an empty queue
	drained  time.Duration // when a round last left no call waiting
	worked   int           // calls that were in flight after the last round
	waited   time.Duration // for a turn, on average

	// Calls let in since the last round, of which the queue may not know yet.
	rounds  int
	letIns  int
	sources int // that they came from
	before  int // sources of the round before
}

// state is what a round leaves behind.
type state uint8

const (
	drained state = iota // no call waits, and none had to
	working              // turns were given
	blocked              // calls wait, and as many are in flight as may be
)

func newCore() core {
	return core{limit: limit{calls: mostInFlight}, queue: newQueue(), patience: usualPatience, rounds: 1, worked: mostInFlight}
}

// room returns how many more calls may wait.
func (c *core) room() int { return roomFor*c.limit.calls - c.queue.calls }

// letIn reports whether a call of s is received. Beyond the room there is some for connections that ask for less than
// an equal share, and for those with several domains: whose call it is only its message says.
func (c *core) letIn(s *Source) bool {
	if s.round != c.rounds {
		s.round, s.letIn = c.rounds, 0
		c.sources++
	}
	share := max(1, roomFor*c.limit.calls/max(c.sources, c.before))
	several := s.mixed > 0 && c.rounds-s.mixed < mixedFor
	room := c.room()
	if s.letIn < share || several {
		room = extraRoom * c.limit.calls
	}
	if c.letIns >= room {
		return false
	}
	s.letIn++
	c.letIns++
	return true
}

// enqueue has w wait for a turn, which its caller waits for until deadline. It reports whether there is room for it.
func (c *core) enqueue(now, deadline time.Duration, w *waiting) bool {
	c.notice(w)
	if c.queue.bytes+w.Size > mostBytes {
		return false
	}
	w.came, w.deadline, w.Cost = now, deadline, max(w.Cost, 1)
	w.patience = min(deadline-now+w.Late, longPatience)
	c.patience += (max(w.patience, leastPatience) - c.patience) / averageOf
	if c.queue.calls == 0 {
		if now-c.drained > surgeEnds {
			c.limit.calls, c.worked = mostInFlight, mostInFlight
		}
		c.emptied = now
	}
	c.queue.add(w)
	return true
}

// notice takes note of the domains of a connection.
func (c *core) notice(w *waiting) {
	s := w.Source
	if s == nil {
		return
	}
	if s.noticed && s.domain != w.Domain {
		s.mixed = c.rounds
	}
	s.domain, s.noticed = w.Domain, true
}

// round gives turns. It is lap since it last did so, and inFlight calls are in flight.
func (c *core) round(now, lap time.Duration, inFlight int, give func(*waiting, Verdict)) state {
	c.rounds++
	c.before, c.sources, c.letIns = c.sources, 0, 0
	if c.queue.calls == 0 {
		return c.drain(now)
	}
	dropped := c.drop(now, lap, give)
	proceeded := 0
	for free := c.limit.calls - inFlight; proceeded < free; proceeded++ {
		w := c.queue.next(c.stands(now))
		if w == nil {
			break
		}
		c.note(now - w.came)
		give(w, Proceed)
	}
	met := c.queue.calls > 0
	c.limit.update(lap, c.patience, max(c.worked, inFlight), met)
	c.worked = inFlight + proceeded
	dropped += c.overflow(give)
	switch {
	case met && proceeded+dropped == 0:
		return blocked
	case !met && dropped == 0 && inFlight+proceeded < c.limit.calls:
		return c.drain(now)
	default:
		return working
	}
}

// drain takes note that no call waits. Of those that come next nothing is known until one has to wait.
func (c *core) drain(now time.Duration) state {
	c.drained, c.worked = now, c.limit.calls
	return drained
}

// stands reports whether the queue has not been empty for long.
func (c *core) stands(now time.Duration) bool { return now-c.emptied > standsAfter*c.patience }

// drop drops the calls that have waited for too long, or for which there is just time for a fallback. No more of them get
// one than may be in flight: fallbacks must not take the time of decisions.
func (c *core) drop(now, lap time.Duration, give func(*waiting, Verdict)) (dropped int) {
	stands, fallbacks := c.stands(now), 0
	c.queue.remove(func(w *waiting) bool {
		left := w.deadline - now - lap
		tooLong := stands && now-w.came > w.patience/dropPart+lap
		if left >= replyMargin+lap && !tooLong {
			return false
		}
		dropped++
		c.note(now - w.came)
		if w.NoFallback || left < replyMargin/2 || fallbacks >= c.limit.calls {
			give(w, Reject)
		} else {
			fallbacks++
			give(w, Fallback)
		}
		return true
	})
	return dropped
}

// overflow rejects what there is no room for, of the domains of which most waits.
func (c *core) overflow(give func(*waiting, Verdict)) (dropped int) {
	for ; c.room() < 0; dropped++ {
		give(c.queue.shorten(), Reject)
	}
	return dropped
}

// note takes note of how long a call waited.
func (c *core) note(waited time.Duration) { c.waited += (waited - c.waited) / averageOf }

// queue has the calls that wait, by domain.
type queue struct {
	calls int
	bytes int
	flows map[uint32]*flow
	turns []*flow // that have calls, in the order of their turns
}

func newQueue() queue { return queue{flows: map[uint32]*flow{}} }

func (q *queue) add(w *waiting) {
	f := q.flows[w.Domain]
	if f == nil {
		f = &flow{domain: w.Domain}
		q.flows[w.Domain] = f
		q.turns = append(q.turns, f)
	}
	f.calls = append(f.calls, w)
	q.calls++
	q.bytes += w.Size
}

// remove removes the calls that over says.
func (q *queue) remove(over func(*waiting) bool) {
	for _, f := range q.turns {
		f.calls = slices.DeleteFunc(f.calls, func(w *waiting) bool {
			size := w.Size // before over: once it has its turn, w is another call's
			if !over(w) {
				return false
			}
			q.calls--
			q.bytes -= size
			return true
		})
	}
	q.tidy()
}

// tidy forgets domains without calls.
func (q *queue) tidy() {
	q.turns = slices.DeleteFunc(q.turns, func(f *flow) bool {
		if len(f.calls) == 0 {
			delete(q.flows, f.domain)
		}
		return len(f.calls) == 0
	})
}

// take removes a call of f, the newest or the oldest.
func (q *queue) take(f *flow, newest bool) *waiting {
	w := f.at(newest)
	if newest {
		f.calls = f.calls[:len(f.calls)-1]
	} else {
		f.calls = f.calls[1:]
	}
	q.calls--
	q.bytes -= w.Size
	return w
}
