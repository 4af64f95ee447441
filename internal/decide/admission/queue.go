package admission

import (
	"slices"
	"time"
)

const (
	standsAfter   = 5                     // the queue stands if it has not been empty for this many times the callers' patience
	dropPart      = 4                     // in a standing queue, a call waits for at most 1/dropPart of its caller's patience
	roomFor       = 1                     // waiting calls for each one that may be in flight
	replyMargin   = 2 * time.Millisecond  // time for an answer to reach its caller
	usualPatience = 20 * time.Millisecond // Envoy's default timeout, as the initial estimate
	longPatience  = time.Second           // upper bound of patience: long deadlines must not keep the queue full for longer
	minPatience   = 5 * time.Millisecond  // lower bound of the average: impatient callers must not shorten rounds further
	surgeEnds     = time.Second           // without a waiting call, after which the estimates are reset
	averageOf     = 64                    // calls in moving averages
)

// waiting is a call that waits for its turn.
type waiting struct {
	Call

	came     time.Duration
	deadline time.Duration
	patience time.Duration // from its headers to its deadline
	turn     chan Verdict  // receives one verdict
}

// core gives turns. All times are relative to the start of an arbitrary clock. It is not safe for concurrent use.
//
// Its queue follows Facebook ("Fail at Scale", Maurer 2015). While the queue is often empty, it only bridges bursts, and calls are served
// in order. Once it stands, the newest calls, which have the most time left, are served first, and a call that waits for longer than a
// part of its caller's patience is dropped, as in CoDel (Nichols and Jacobson, "Controlling Queue Delay", 2012).
type core struct {
	limit    limit
	queue    queue
	patience time.Duration // average of callers, at least minPatience
	emptied  time.Duration // time when a call last came to an empty queue
	drained  time.Duration // time when a round last left no call waiting
	worked   int           // calls in flight after the last round
	waited   time.Duration // average wait for a turn

	// Calls let in since the last round; some may not have reached the queue yet.
	rounds  int
	letIns  int
	sources int // sources of letIns
	before  int // sources in the previous round
}

// state is the state after a round.
type state uint8

const (
	drained state = iota // no call waits, and none had to wait
	working              // turns were given
	blocked              // calls wait, and the limit of calls in flight is reached
)

func newCore() core {
	return core{limit: limit{calls: maxInFlight}, queue: newQueue(), patience: usualPatience, rounds: 1, worked: maxInFlight}
}

// room returns how many more calls may wait.
func (c *core) room() int { return roomFor*c.limit.calls - c.queue.calls }

// letIn reports whether to receive a call of s. Beyond the room of the queue there is extra room for connections that ask for less than
// an equal share, and for those with several domains, since only the message names the domain.
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

// enqueue adds w, whose caller gives up at deadline, to the queue. It reports whether there was room for it.
func (c *core) enqueue(now, deadline time.Duration, w *waiting) bool {
	c.recordDomain(w)
	if c.queue.bytes+w.Size > maxBytes {
		return false
	}
	w.came, w.deadline, w.Cost = now, deadline, max(w.Cost, 1)
	w.patience = min(deadline-now+w.Delay, longPatience)
	c.patience += (max(w.patience, minPatience) - c.patience) / averageOf
	if c.queue.calls == 0 {
		if now-c.drained > surgeEnds {
			c.limit.calls, c.worked = maxInFlight, maxInFlight
		}
		c.emptied = now
	}
	c.queue.add(w)
	return true
}

// recordDomain records the domain of w's connection.
func (c *core) recordDomain(w *waiting) {
	s := w.Source
	if s == nil {
		return
	}
	if s.hasDomain && s.domain != w.Domain {
		s.mixed = c.rounds
	}
	s.domain, s.hasDomain = w.Domain, true
}

// round gives turns; lap is the time since the last round, and inFlight the number of calls in flight.
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
		c.recordWait(now - w.came)
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

// drain records that no call waits. It sets worked to the limit: nothing is known about the next calls until one has to wait.
func (c *core) drain(now time.Duration) state {
	c.drained, c.worked = now, c.limit.calls
	return drained
}

// stands reports whether the queue has not been empty for long.
func (c *core) stands(now time.Duration) bool { return now-c.emptied > standsAfter*c.patience }

// drop drops the calls that have waited for too long, or that only have time for a fallback. At most as many calls as may be in flight
// get a fallback: fallbacks must not displace decisions.
func (c *core) drop(now, lap time.Duration, give func(*waiting, Verdict)) (dropped int) {
	stands, fallbacks := c.stands(now), 0
	c.queue.remove(func(w *waiting) bool {
		left := w.deadline - now - lap
		tooLong := stands && now-w.came > w.patience/dropPart+lap
		if left >= replyMargin+lap && !tooLong {
			return false
		}
		dropped++
		c.recordWait(now - w.came)
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

// overflow rejects calls that exceed the room, from the domains with the most waiting calls.
func (c *core) overflow(give func(*waiting, Verdict)) (dropped int) {
	for ; c.room() < 0; dropped++ {
		give(c.queue.shorten(), Reject)
	}
	return dropped
}

// recordWait adds a wait to the average.
func (c *core) recordWait(waited time.Duration) { c.waited += (waited - c.waited) / averageOf }

// queue holds the waiting calls by domain.
type queue struct {
	calls int
	bytes int
	flows map[uint32]*flow
	turns []*flow // flows that have calls, in the order of their turns
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

// remove removes the calls that satisfy over.
func (q *queue) remove(over func(*waiting) bool) {
	for _, f := range q.turns {
		f.calls = slices.DeleteFunc(f.calls, func(w *waiting) bool {
			size := w.Size // read before over, which may let another call reuse w
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

// tidy removes the flows without calls.
func (q *queue) tidy() {
	q.turns = slices.DeleteFunc(q.turns, func(f *flow) bool {
		if len(f.calls) == 0 {
			delete(q.flows, f.domain)
		}
		return len(f.calls) == 0
	})
}

// take removes the newest or oldest call of f.
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
