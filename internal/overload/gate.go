// Package overload decides for which requests this process has no time, so that those it works on are answered in time.
//
// How long a call waits is measured, not guessed from how many there are: it is the time from when its headers were read
// until its handler has its message. A busy process lets a call wait about as long before its headers are read, where
// nobody can see it, when the store has answered, and before its own answer is written. From this follows what a call
// still needs. One that has less is decided by the policies of its rules at once, which costs a fraction of the work, and
// leaves the time to the others.
package overload

import (
	"sync/atomic"
	"time"
)

// Unloaded is a wait below which nothing is shed, and nothing needs to be known of a request.
const Unloaded = time.Millisecond

const (
	margin  = 2 * time.Millisecond // what a call needs however short its waits are
	waits   = 3                    // how many more waits a call needs time for
	fewest  = 1                    // the same, for a domain that takes less than its share
	least   = 64                   // the lowest limit of calls in progress
	settle  = 5 * time.Millisecond // how long a lower limit has to show an effect before it is lowered again
	forgets = 64                   // how many calls the moving average of waits is made of
)

// Config is the configuration of a [Gate].
type Config struct {
	MaxCalls int           // calls in progress
	Patience time.Duration // how long a call without a deadline may take
}

// Gate decides which calls are worked on. Its methods are safe for concurrent use.
type Gate struct {
	config Config
	begun  time.Time

	calls  atomic.Int64 // in progress
	limit  atomic.Int64 // of calls in progress, at present
	cut    atomic.Int64 // when limit was last lowered, in nanoseconds since begun
	wait   atomic.Int64 // moving average, in nanoseconds
	last   atomic.Int64 // when wait was last added to
	shares shares
}

// New returns a Gate.
func New(c Config) *Gate {
	g := &Gate{config: c, begun: time.Now()}
	g.limit.Store(int64(c.MaxCalls))
	return g
}

// Patience returns how long a call without a deadline may take.
func (g *Gate) Patience() time.Duration { return g.config.Patience }

// Full reports whether a call whose headers have been read must be refused without reading its message. That is an error,
// whatever the policies of its rules say, and so the limit falls only when answers of any kind would come too late.
func (g *Gate) Full() bool { return g.calls.Load() >= g.limit.Load() }

// Enter must be called when the headers of a call have been read, and Leave when it ends.
func (g *Gate) Enter() { g.calls.Add(1) }

// Leave must be called when a call that has entered ends.
func (g *Gate) Leave() { g.calls.Add(-1) }

// Hopeless reports whether a call that has waited for so long, and has so much time left, will not be answered in time
// whatever is done for it: its answer will wait as long again.
func (g *Gate) Hopeless(waited, left time.Duration) bool {
	if waited < Unloaded || left >= waited+margin {
		return false
	}
	now := time.Since(g.begun)
	g.note(now, waited)
	g.lower(now) // shedding one by one does not suffice
	return true
}

// Request is what a Gate has to know of a request.
type Request struct {
	Domain      uint32 // a hash of its name
	Descriptors int
	Waited      time.Duration // since the headers of its call were read
	Left        time.Duration // until its caller gives up
}

// Late reports whether there is no time for r.
func (g *Gate) Late(r Request) bool {
	if r.Waited < Unloaded {
		return false
	}
	now := time.Since(g.begun)
	g.note(now, r.Waited)
	switch {
	case r.Left >= waits*r.Waited+margin:
		if n := g.limit.Load(); n < int64(g.config.MaxCalls) && g.calls.Load() > n/2 {
			g.limit.Add(1)
		}
	case r.Left >= fewest*r.Waited+margin && g.shares.under(r.Domain):
	default:
		return true
	}
	g.shares.add(now, r.Domain, r.Descriptors)
	return false
}

// note adds a wait to the moving average.
func (g *Gate) note(now, waited time.Duration) {
	g.last.Store(int64(now))
	old := g.wait.Load()
	g.wait.Store(old + (int64(waited)-old)/forgets)
}

// lower lowers the limit of calls in progress.
func (g *Gate) lower(now time.Duration) {
	last := g.cut.Load()
	if int64(now)-last > int64(settle) && g.cut.CompareAndSwap(last, int64(now)) {
		g.limit.Store(max(least, min(g.limit.Load(), g.calls.Load())*7/8))
	}
}

// Stats is what a Gate does at present.
type Stats struct {
	Calls int64         // in progress
	Limit int64         // of calls in progress
	Wait  time.Duration // from the headers of a call to its message, of late; 0 while it is too short to matter
}

// Stats returns what g does at present.
func (g *Gate) Stats() Stats {
	s := Stats{Calls: g.calls.Load(), Limit: g.limit.Load()}
	if time.Since(g.begun)-time.Duration(g.last.Load()) < period {
		s.Wait = time.Duration(g.wait.Load())
	}
	return s
}
