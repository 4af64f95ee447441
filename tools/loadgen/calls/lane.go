package calls

import (
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// lane is a connection of a load, or one after the other.
type lane struct {
	load *Running
	n    int
	wake chan struct{} // something has ended

	next    int // number of the next call
	backlog []pending
	current *stream
	past    []*stream // that are left, and may have open calls

	open atomic.Int64 // calls that were sent and are not over
}

// pending is a call that is not over.
type pending struct {
	due  time.Duration
	lag  time.Duration // of the load: how long after that it was there to be sent
	what int32
}

// Pace is how often calls that are due are sent, and calls are given up.
const Pace = 500 * time.Microsecond

// run sends calls until ctx is done, and then waits for a second for what is open.
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
	if a.load.At != nil { // what was due before the end counts
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

// rest returns how long there is nothing to do, unless a call ends before.
func (a *lane) rest() time.Duration {
	if a.load.Patience > 0 || len(a.backlog) > 0 {
		return Pace // calls are to be given up, or to be sent
	}
	if a.load.At == nil {
		return time.Second // each call that ends wakes the lane; hundreds that look for themselves would load the machine
	}
	return max(Pace, a.load.At(a.n, a.next)-a.load.now())
}

// fill adds what is due now, or what may be open at once.
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

// sentAll says whether there is nothing more to send, of a load with a total, and finished whether all has been answered.
func (a *lane) sentAll() bool { return a.load.Total > 0 && a.n+a.next*a.load.Conns >= a.load.Total }

func (a *lane) finished() bool { return a.sentAll() && len(a.backlog) == 0 && a.unfinished() == 0 }

func (a *lane) unfinished() int { return int(a.open.Load()) }

// add has a call sent next.
func (a *lane) add(due time.Duration) {
	what := a.load.what(a.n, a.next)
	a.next++
	a.backlog = append(a.backlog, pending{due, a.load.now() - due, int32(what)})
}

// over tells how a call that was not sent has ended.
func (a *lane) over(o Outcome) { a.load.Each(a.n, o) }

// ended tells how a call that was sent has ended.
func (a *lane) ended(o Outcome) {
	a.open.Add(-1)
	a.over(o)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// send sends what is due, as far as the connection takes it, and gives up what takes too long.
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
				time.Sleep(Pace) // or this would be a busy loop
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

// giveUp gives up calls for which there is no time left.
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
