package main

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lane is a connection of a load, or one after the other.
type lane struct {
	load *running
	n    int
	head []byte        // headers of each call
	wake chan struct{} // something has ended

	next    int // number of the next call
	backlog []pending
	current *stream
	past    []*stream // that are left, and may have open calls

	mu   sync.Mutex // guards what is below
	kept outcomes
	open int // calls that are not over
}

// pending is a call that is not over.
type pending struct {
	due  time.Duration
	lag  time.Duration // of the load: how long after that it was there to be sent
	what int32
}

// pace is how often due calls are sent.
const pace = 500 * time.Microsecond

// run sends calls until ctx is done, and then waits for a second for what is open.
func (a *lane) run(ctx context.Context) {
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for ctx.Err() == nil && !a.finished() {
		a.fill()
		a.send()
		if a.load.at != nil {
			<-tick.C
			continue
		}
		select {
		case <-tick.C:
		case <-a.wake:
		}
	}
	for _, p := range a.backlog {
		a.over(outcome{due: p.due, what: p.what, took: a.load.now() - p.due, lag: p.lag, kind: late})
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

// fill adds what is due now, or what may be open at once.
func (a *lane) fill() {
	now := a.load.now()
	if a.load.at == nil {
		for a.unfinished()+len(a.backlog) < a.load.inflight && !a.sentAll() {
			a.add(now)
		}
		return
	}
	for due := a.load.at(a.n, a.next); due <= now; due = a.load.at(a.n, a.next) {
		a.add(due)
	}
}

// sentAll says whether there is nothing more to send, of a load with a total, and finished whether all has been answered.
func (a *lane) sentAll() bool { return a.load.total > 0 && a.n+a.next*a.load.conns >= a.load.total }

func (a *lane) finished() bool { return a.sentAll() && len(a.backlog) == 0 && a.unfinished() == 0 }

func (a *lane) unfinished() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.open
}

// add has a call sent next.
func (a *lane) add(due time.Duration) {
	// Connections begin at different requests.
	what := (a.n + a.next*a.load.conns) % len(a.load.requests)
	if a.load.pick != nil {
		what = a.load.pick(a.next)
	}
	a.next++
	a.backlog = append(a.backlog, pending{due, a.load.now() - due, int32(what)})
}

// over takes down how a call that was not sent has ended.
func (a *lane) over(o outcome) {
	if a.load.each != nil {
		a.load.each(o)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.kept = append(a.kept, o)
}

// ended takes down how a call that was sent has ended.
func (a *lane) ended(o outcome) {
	a.mu.Lock()
	a.open--
	a.mu.Unlock()
	a.over(o)
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// send sends what is due, as far as the connection takes it, and gives up what takes too long.
func (a *lane) send() {
	a.giveUp()
	if len(a.backlog) == 0 {
		return
	}
	if a.current == nil || !a.current.usable() {
		s, err := connect(a)
		if err != nil {
			for _, p := range a.backlog {
				a.over(outcome{due: p.due, what: p.what, took: a.load.now() - p.due, kind: lost})
			}
			a.backlog = a.backlog[:0]
			if a.load.at == nil {
				time.Sleep(pace) // or this would be a busy loop
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
	if a.load.patience == 0 {
		return
	}
	now := a.load.now()
	kept := a.backlog[:0]
	for _, p := range a.backlog {
		if now-p.due < a.load.patience {
			kept = append(kept, p)
			continue
		}
		a.over(outcome{due: p.due, what: p.what, took: now - p.due, lag: p.lag, kind: late})
	}
	a.backlog = kept
	for _, s := range a.past {
		s.cancel(now - a.load.patience)
	}
	a.past = slices.DeleteFunc(a.past, (*stream).over)
	if a.current != nil {
		a.current.cancel(now - a.load.patience)
	}
}
