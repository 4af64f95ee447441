package calls

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// lane makes calls on a connection, which it replaces when it breaks.
type lane struct {
	load *Running
	n    int
	wake chan struct{} // a call or stream has ended

	next    int // index of the next call
	backlog []pending
	current *stream
	past    []*stream // draining streams, which may have open calls

	open atomic.Int64 // calls sent and not ended
}

// pending is a call that has not ended.
type pending struct {
	due  time.Duration
	lag  time.Duration // delay of sending, caused by the load
	what int32
}

// Pace is the interval of sending due calls and of cancelling calls.
const Pace = 500 * time.Microsecond

// run sends calls until ctx is done, and then waits up to a second for open calls.
func (a *lane) run(ctx context.Context) {
	tick := time.NewTimer(Pace)
	defer tick.Stop()
	for ctx.Err() == nil && !a.finished() {
		a.fill()
		a.send(ctx)
		tick.Reset(a.rest())
		wake := a.wake
		if a.load.At != nil {
			wake = nil
		}
		select {
		case <-tick.C:
		case <-wake:
		case <-ctx.Done():
		}
	}
	if a.load.At != nil { // calls due before the end count
		a.fill()
		a.send(ctx)
	}
	for _, p := range a.backlog {
		a.over(Outcome{Due: p.due, What: p.what, Took: a.load.now() - p.due, Lag: p.lag, Kind: Late})
	}
	for end := time.Now().Add(time.Second); a.unfinished() > 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		a.giveUp()
	}
	if a.current != nil {
		a.current.finish()
	}
	for _, s := range a.past {
		s.finish()
	}
}

// rest returns the time until the next action, unless a call ends first.
func (a *lane) rest() time.Duration {
	if a.load.Patience > 0 || len(a.backlog) > 0 {
		return Pace // there are calls to cancel or to send
	}
	if a.load.At == nil {
		return time.Second // each call that ends wakes the lane; polling in hundreds of lanes would load the machine
	}
	return max(Pace, a.load.At(a.n, a.next)-a.load.now())
}

// fill queues the calls that are due, or that may be open concurrently.
func (a *lane) fill() {
	now := a.load.now()
	if a.load.At == nil {
		for a.unfinished()+len(a.backlog) < a.load.Inflight && !a.sentAll() {
			a.add(now)
		}
		return
	}
	for due := a.load.At(a.n, a.next); due <= now; due = a.load.At(a.n, a.next) {
		a.add(due)
	}
}

// sentAll reports whether all calls of a load with a total were sent, and finished whether all were answered.
func (a *lane) sentAll() bool { return a.load.Total > 0 && a.n+a.next*a.load.Conns >= a.load.Total }

func (a *lane) finished() bool { return a.sentAll() && len(a.backlog) == 0 && a.unfinished() == 0 }

func (a *lane) unfinished() int { return int(a.open.Load()) }

// add queues a call.
func (a *lane) add(due time.Duration) {
	what := a.load.what(a.n, a.next)
	a.next++
	a.backlog = append(a.backlog, pending{due, a.load.now() - due, int32(what)})
}

// over reports the end of a call that was not sent.
func (a *lane) over(o Outcome) { a.load.Each(a.n, o) }

// ended reports the end of a call that was sent.
func (a *lane) ended(o Outcome) {
	a.open.Add(-1)
	a.over(o)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// send sends queued calls while the connection accepts them, and cancels overdue calls.
func (a *lane) send(ctx context.Context) {
	a.giveUp()
	if len(a.backlog) == 0 {
		return
	}
	if a.current == nil || !a.current.usable() {
		s, err := connect(ctx, a)
		if err != nil {
			for _, p := range a.backlog {
				a.over(Outcome{Due: p.due, What: p.what, Took: a.load.now() - p.due, Kind: Lost})
			}
			a.backlog = a.backlog[:0]
			if a.load.At == nil {
				time.Sleep(Pace) // avoids a busy loop
			}
			return
		}
		if a.current != nil {
			a.past = append(a.past, a.current)
		}
		a.current = s
	}
	sent := a.current.write(a.backlog)
	a.backlog = append(a.backlog[:0], a.backlog[sent:]...)
}

// giveUp cancels overdue calls.
func (a *lane) giveUp() {
	if a.load.Patience == 0 {
		return
	}
	now := a.load.now()
	kept := a.backlog[:0]
	for _, p := range a.backlog {
		if now-p.due < a.load.Patience {
			kept = append(kept, p)
			continue
		}
		a.over(Outcome{Due: p.due, What: p.what, Took: now - p.due, Lag: p.lag, Kind: Late})
	}
	a.backlog = kept
	for _, s := range a.past {
		s.cancel(now - a.load.Patience)
	}
	a.past = slices.DeleteFunc(a.past, (*stream).over)
	if a.current != nil {
		a.current.cancel(now - a.load.Patience)
	}
}
