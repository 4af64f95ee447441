// Package overload decides for which requests this process has no time, so that those it works on are answered in time.
//
// Where a process has more to do than it can, everything waits: bytes in sockets, calls for a processor, answers for being
// written. Most of that is out of sight, and goes in the order in which it came, so that all of it comes too late together.
// So once calls wait, they do so in one [line]: it lets no more of them go on than are answered soon, the newest first where
// there is not time for all, and has policies decide those for which there is none. Between two turns of the line everything
// that has arrived is read (see [poller]), which keeps short what is out of sight, and shows how long it is.
package overload

import (
	"sync/atomic"
	"time"
)

// Unloaded is a wait below which nothing needs to be known of a call.
const Unloaded = time.Millisecond

const (
	least   = 16                     // the lowest limit of calls in progress
	settle  = 5 * time.Millisecond   // how long a limit has to show an effect before it is changed again
	healed  = time.Second            // without too many calls, until the limit is what it was
	epoch   = 100 * time.Millisecond // for which clients are counted
	longest = 10 * time.Millisecond  // between two turns of a paced line, and of any while there is time to read what is too much
	// So many times what it has waited is time enough for a call, if nobody waits for a turn: turns cost something too. With several
	// domains it is twice as many, since those that take less than their share go first where there are turns.
	patience = 8
	heard    = 4   // times the limit may be in progress with calls that are let in for their domain's sake
	workers  = 128 // calls in progress that are no sign of anything: about as many are worked on without a goroutine of their own
	forgets  = 64  // how many calls the moving average of waits is made of
)

// Config is the configuration of a [Gate].
type Config struct {
	MaxCalls int                  // calls in progress
	Patience time.Duration        // how long a call without a deadline may take
	Way      func() time.Duration // about how long a store takes, however few calls ask it; nil if there is none
}

// Gate decides which calls are worked on. Its methods are safe for concurrent use.
type Gate struct {
	config Config
	begun  time.Time

	limit  atomic.Int64 // of calls in progress, at present
	turns  atomic.Int64 // of calls that went on since limit was last changed
	cut    atomic.Int64 // when limit was last lowered, in nanoseconds since begun
	raised atomic.Int64 // when it was last raised because nobody waited
	missed atomic.Int64 // calls that had ended when they were taken up, since `since`, or since limit was lowered for them
	since  atomic.Int64 // when counting these was last begun anew, at most period ago when one is counted
	wait   atomic.Int64 // moving average, in nanoseconds
	last   atomic.Int64 // when wait was last added to
	shares shares
	line   line
	spare  spare

	// Clients that met the limit, counted anew in each epoch.
	epoch   atomic.Int64
	clients [2]atomic.Int64 // in this one, and in the one before
	asks    atomic.Int64    // calls of theirs, of which half are forgotten with each epoch

	_     [64]byte     // what each call writes has a cache line of its own, apart from what each call reads
	calls atomic.Int64 // in progress
	_     [56]byte
}

// Client is a connection. The zero value is ready for use.
type Client struct {
	calls  atomic.Int64  // in progress that came while the limit was lowered
	epoch  atomic.Int64  // in which it was last counted
	asks   atomic.Int64  // its part of the gate's
	domain atomic.Uint32 // of its last call
	mixed  atomic.Int64  // when that last changed, in nanoseconds since the gate began; 0 if it never did

	// What has been read from it and waits; guarded by readers, but for the channel, which it alone waits on.
	read  chan struct{}
	size  int
	full  bool  // there was more to read when it was last read
	due   bool  // it goes on in this round
	round int64 // in which it last came with calls of domains below their share
	came  int   // how often it did
}

// Call is one that has been read.
type Call struct {
	Domain   uint32        // a hash of its name; 0 for all that have no rules
	Cheap    bool          // refusing it unread comes to the same: policies can but fail it, or answer it then, too
	Size     int           // of its message
	Waited   time.Duration // since its headers were read
	Deadline time.Time     // when its caller gives up
	Client   *Client       // with which it has entered
	Seen     *Seen         // what it seemed to be when it was let in; nil if nothing was known
}

// Seen is what is known of a call before it has been received.
type Seen struct {
	Domain uint32 // as of Call
	Size   int
	Cheap  bool
	asked  bool // it counts among those that its client has asked for
}

// New returns a Gate.
func New(c Config) *Gate {
	if c.Way == nil {
		c.Way = func() time.Duration { return 0 }
	}
	g := &Gate{config: c, begun: time.Now()}
	g.limit.Store(int64(c.MaxCalls))
	g.line.init(g)
	return g
}

// Patience returns how long a call without a deadline may take.
func (g *Gate) Patience() time.Duration { return g.config.Patience }

// Busy reports whether calls wait, or fewer of them than usual may be in progress. Then the gate wants to know as much as can be seen of each
// before it is received.
func (g *Gate) Busy() bool { return g.line.open.Load() || g.Limited() }

// Limited reports whether fewer calls than usual may be in progress. Then the gate wants to know the client of each.
func (g *Gate) Limited() bool { return g.most() < int64(g.config.MaxCalls) }

// most returns how many calls may be in progress. If nobody waits, and there have not been too many for a while, that is
// what it was: no turn of the line would say so.
func (g *Gate) most() int64 {
	limit := g.limit.Load()
	if limit < int64(g.config.MaxCalls) && !g.line.open.Load() && g.now()-g.cut.Load() > int64(healed) &&
		g.limit.CompareAndSwap(limit, int64(g.config.MaxCalls)) {
		return int64(g.config.MaxCalls)
	}
	return limit
}

// Full reports whether a call of c, which may be nil, must be refused without receiving its message. Unless policies can be asked all the
// same, that is an error. Beyond the limit a call is let in if its client
//   - has less than an equal share of the limit;
//   - or asks for less than half of what clients ask for on average: with many of them an equal share is less than a call;
//
// or if its domain is below its share, as long as not too many are in progress; or, where nothing has been seen of the call, if its client
// asks for several domains and there is time to find out whose it is.
//
// So many others of c have been let in that have not entered yet.
func (g *Gate) Full(c *Client, seen *Seen, coming int) bool {
	calls, limit := g.calls.Load()+int64(coming), g.most()
	switch {
	case calls < limit:
		return false
	case c == nil || calls >= int64(g.config.MaxCalls):
		return true
	case g.modest(c, seen, limit, coming):
		return false
	case seen == nil:
		return !g.mixed(c)
	case calls < heard*max(limit, workers) && g.shares.under(seen.Domain):
		return false
	default:
		g.shares.dismissed(time.Since(g.begun), seen.Domain, seen.Size)
		return true
	}
}

// Missed tells of a call that had ended so long after its headers were read, when it was taken up, and whose caller was to wait for so long.
// Where that is what becomes of calls, all that is read comes too late, nobody waits for a turn any more, and so nothing else would say that
// there is too much.
func (g *Gate) Missed(after, patience time.Duration) {
	if after < haste || !hastes(patience) && !hastes(patience+Unloaded) { // its caller began to wait a little before its headers were read
		return
	}
	if now := g.now(); now-g.since.Load() > int64(period) {
		g.since.Store(now)
		g.missed.Store(0)
	}
	if g.missed.Add(1) > few {
		g.missed.Store(0)
		g.lower(time.Now(), 2*workers)
	}
}

// modest reports whether c has less than an equal share of a limit, or asks for little.
func (g *Gate) modest(c *Client, seen *Seen, limit int64, coming int) bool {
	asking := g.asking(c, g.now()/int64(epoch)+1)
	if seen == nil || !seen.asked {
		g.asks.Add(1)
		c.asks.Add(1)
	}
	if seen != nil {
		seen.asked = true
	}
	return (c.calls.Load()+int64(coming)+1)*asking <= limit || 2*c.asks.Load()*asking <= g.asks.Load()
}

// Under reports whether a domain is below its share.
func (g *Gate) Under(domain uint32) bool { return g.shares.under(domain) }

// asking returns how many clients, with c, have met the limit of late. now numbers the epoch, from 1 on; others may know of a later one
// already.
func (g *Gate) asking(c *Client, now int64) int64 {
	if before := g.epoch.Load(); before < now && g.epoch.CompareAndSwap(before, now) {
		last := g.clients[0].Swap(0)
		if before != now-1 {
			last = 0
		}
		g.clients[1].Store(last)
		g.asks.Store(g.asks.Load() >> min(now-before, 63))
	}
	if before := c.epoch.Load(); before < now && c.epoch.CompareAndSwap(before, now) {
		g.clients[0].Add(1)
		c.asks.Store(c.asks.Load() >> min(now-before, 63))
	}
	return max(1, g.clients[0].Load(), g.clients[1].Load()) // somebody may just be moving them
}

// mixed reports whether calls of c have to be read to know whose they are, and there is time for that.
func (g *Gate) mixed(c *Client) bool {
	last := c.mixed.Load()
	return last > 0 && g.now()-last < int64(healed) && g.line.pace.Load() < int64(longest)
}

// Enter must be called when the headers of a call have been read, and Leave when it ends, each with the same client; nil
// will do while the gate is not limited.
func (g *Gate) Enter(c *Client) {
	g.calls.Add(1)
	if c != nil {
		c.calls.Add(1)
	}
}

// Leave must be called when a call that has entered ends.
func (g *Gate) Leave(c *Client) {
	g.calls.Add(-1)
	if c != nil {
		c.calls.Add(-1)
	}
}

// Free reports whether a call that has waited for so long goes on at once.
func (g *Gate) Free(waited time.Duration) bool { return waited < Unloaded && !g.line.open.Load() }

// Wait waits for the turn of a call. Done must be called once the call has been decided.
func (g *Gate) Wait(c Call) (turn Turn) {
	inLine := time.Duration(0)
	switch {
	case g.excess(&c):
		turn.Verdict = Lost
	case g.line.open.Load() || g.presses(&c):
		begun := time.Now()
		turn = g.line.wait(c)
		inLine = time.Since(begun)
	}
	if turn.Verdict == Go || inLine >= Unloaded { // who is dismissed at once waits for no turn
		g.note(c.Waited + inLine)
	}
	return turn
}

// presses reports whether a call has little time left for how long it has waited.
func (g *Gate) presses(c *Call) bool {
	times := time.Duration(patience)
	if g.shares.several() {
		times *= 2
	}
	return time.Until(c.Deadline) <= times*c.Waited
}

// excess reports whether a call is beyond the limit, and was let in only to know whose it is, or because it seemed to be somebody else's.
// It is of another domain than it seemed to be where grpc has turned calls away that were read with it, or its client says one thing
// first and then another.
func (g *Gate) excess(c *Call) bool {
	if c.Client == nil {
		return false
	}
	if before := c.Client.domain.Swap(c.Domain); before != 0 && before != c.Domain {
		c.Client.mixed.Store(g.now())
	}
	if !g.Limited() || g.calls.Load() <= g.limit.Load() || g.shares.under(c.Domain) {
		return false
	}
	seemed := c.Seen != nil && c.Seen.Domain != c.Domain
	if !seemed && !g.mixed(c.Client) {
		return false
	}
	g.shares.dismissed(time.Since(g.begun), c.Domain, c.Size)
	return true
}

// Done must be called when a call has been decided; shed says that the store had no time for it.
func (g *Gate) Done(t Turn, shed bool) {
	if t.counted {
		g.line.done(t, shed, time.Now())
	}
}

// now returns the time since g began.
func (g *Gate) now() int64 { return int64(time.Since(g.begun)) }

// note adds a wait to the moving average.
func (g *Gate) note(waited time.Duration) {
	g.last.Store(g.now())
	old := g.wait.Load()
	g.wait.Store(old + (int64(waited)-old)/forgets)
}

// lower lowers the limit of calls in progress, because too many are read for which there is no time. As many as may go on
// are let in, in any case.
func (g *Gate) lower(now time.Time, room int) {
	at := int64(now.Sub(g.begun))
	if cut := g.cut.Load(); at-cut > int64(settle) && g.cut.CompareAndSwap(cut, at) {
		g.limit.Store(max(least, int64(room), min(g.limit.Load(), g.calls.Load())*7/8))
		g.turns.Store(0)
	}
}

// raise raises it: slowly while calls go on, and faster when it is over: nobody waits any more, or has been dismissed for a while.
func (g *Gate) raise(now time.Time, turns int, over bool) {
	limit, most := g.limit.Load(), int64(g.config.MaxCalls)
	if limit == most {
		return
	}
	at, cut := int64(now.Sub(g.begun)), g.cut.Load()
	switch {
	case over && at-cut > int64(healed):
		limit = most
	case over && at-max(cut, g.raised.Load()) > int64(settle):
		g.raised.Store(at)
		limit += max(1, limit/8)
	case g.turns.Add(int64(turns)) >= limit/4 && g.calls.Load() > limit/2:
		g.turns.Store(0)
		limit++
	}
	g.limit.Store(min(limit, most))
}

// Stats is what a Gate does at present.
type Stats struct {
	Calls int64         // in progress
	Limit int64         // of calls in progress
	Wait  time.Duration // from the headers of a call to its turn, of late; 0 while it is too short to matter
}

// Stats returns what g does at present.
func (g *Gate) Stats() Stats {
	s := Stats{Calls: g.calls.Load(), Limit: g.most()}
	if g.now()-g.last.Load() < int64(period) {
		s.Wait = time.Duration(g.wait.Load())
	}
	return s
}
