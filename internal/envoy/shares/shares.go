// Package shares divides a limit among holders that decide by themselves: clients that admit requests by a token bucket which
// they were assigned, and report every few seconds what they did. They come and go, report late or not at all, and die.
//
// Everything here is a function of earlier calls and of the time, which is an argument. Nothing reads a clock, waits, or does
// I/O. A caller keeps one [Bucket] for each limit that is divided, passes on what clients report, asks the store what the
// bucket wants to ask, and tells clients what it returns:
//
//	bucket.Report(now, client, usage) // as reports come, and Leave as streams end
//	for now >= bucket.Next() {
//		if ask, ok := bucket.Ask(now); ok {
//			bucket.Answer(now, store.Lease(ask)) // or bucket.Failed(now, fallback)
//		}
//		for _, action := range bucket.Actions(now) { … }
//	}
//
// # The division
//
//  1. Demand (demand.go). Requests reported, allowed or not, over the time that the report covers. Noise is smoothed, and a
//     jump is believed immediately. Callers that ask the store themselves (RLS) are one more claim.
//  2. Capacity (fast.go, strict.go). The hits per second that all replicas may hand out together.
//  3. Parts (divide.go). Each claim gets its max–min fair part by weight. What is left is headroom.
//  4. Shares (apply.go). A share moves when that is worth a message, and both the old and the new one are paid for until the
//     message has arrived. An assignment is sent again after each report and lasts three report intervals.
//
// A division follows each jump, join and departure after 100 ms, and each answer of the store, which is asked once a second.
//
// # The bound
//
// The limit is a counter in the store that other callers use as well. Every second a bucket pays there for the next second of
// all its shares, used or not; a report returns what was not used.
//
// [Fast] admits at most burst + rate × time + E. E is 1.3 s of the rate for each replica that has just started or found the store
// again, and for one replica otherwise; one hit for each client; and what clients use without an assignment or out of reach. While the
// store does not answer, E grows by up to one burst.
//
// [Strict] admits at most the limit, plus what clients use without an assignment. If RLS callers use up a new window immediately, or the
// store is away when it begins, clients use their shares until they are told. It takes hits from the counter before it assigns them: all
// that an assignment can admit until it has expired and Delivery has passed. Messages must not be later than that.
//
// # Replicas
//
// Replicas share one table in the store, with a [Row] each, and replace their row as they ask. A row does not list clients. It
// has what they claim together near the present fair level: the sum of the demands below it, and the weight of the others. From
// these every replica computes the level again, which is Newton's method on a concave function: the level rises from below,
// within a few exchanges, to the one that a single replica would find.
//
// When a replica closes its streams or dies, the others keep back the shares of its clients, and pay for them, until these
// clients have reported elsewhere.
//
// This package is optional: the core works without it.
package shares

import (
	"math"
	"slices"
)

// Times of the division.
const (
	usualInterval = 5 * second // between the reports of Envoy
	usualTTL      = 15         // seconds: three intervals
	leastTTL      = 2          // seconds
	each          = second     // time between two divisions
	coalesce      = second / 10
	arrival       = second / 5 // of a message to a client that is connected
	idleAfter     = 60 * second
	never         = Micros(math.MaxInt64)

	// A client whose stream ended reports elsewhere at its next interval. So long its share is kept back.
	handover = usualInterval + 2*second
)

// Hysteresis: a client rounds its tokens down at each change, so changes must be worth it, and so must a division.
const (
	leastMove = 0.1  // of a rate
	leastJump = 0.01 // of what is handed out: jumps of demand that are less, together, wait for the next second
	tolerance = 1.03 // of what may be handed out; beyond it, every share shrinks, or all that can grow
)

// Bucket is one limit and its holders at one replica. It must not be used concurrently.
type Bucket struct {
	Config
	clock   clock
	holders []*holder
	byID    map[string]*holder

	account
	stray   stray
	burn    float64 // strict: of the hits that were asked for, those that are dropped
	callers demand  // RLS

	met     bool   // the other replicas
	heard   Micros // their rows
	others  []Row
	claims  []Claim // of the live holders, and of RLS callers; room for the next plan
	claim   Claim   // of all of them
	level   float64 // the fair level that claims are made at
	cap     float64 // hits per second that all replicas may hand out
	want    float64 // the part of it that belongs to this replica
	portion float64 // of that part: what its holders may have
	jumps   float64 // of demand since the last division, in hits per second

	due      Micros // the next question to the store
	asked    Micros // the last one
	asking   bool   // an answer is outstanding
	divideAt Micros // the next division that follows an event
	paused   Micros // no question before, whatever is due
	failed   Micros // the first failure of the store since its last answer, or 0
	fallback Fallback
	decided  bool // the limit is divided, or ruling is what decides instead of it
	ruling   Kind // what all clients are told, or TokenBucket
	closed   bool // the streams of this replica have been closed
	follows  bool // it asks although it has no holders
	actions  []Action
	round    uint64 // of actions, from 1
}

// New returns a bucket without holders. The zero Config divides nothing: until [Bucket.Become] or [Bucket.Rule] clients are told nothing,
// or what the fallback says.
func New(c Config, now Micros) *Bucket {
	if c.Delivery == 0 {
		c.Delivery = usualInterval
	}
	b := &Bucket{
		Config: c, decided: c.Limit != Limit{}, met: c.Replica == "", clock: clock{wall: now, now: now}, byID: map[string]*holder{}, round: 1,
		level: math.Inf(1), asked: now - each, due: never, divideAt: never,
	}
	b.stray.at, b.funded, b.inherited = now, math.Inf(1), now
	b.left = float64(c.Limit.Burst)
	if c.Limit.Burst == 0 {
		b.left = float64(c.Limit.Hits)
	}
	return b
}

// Become makes b divide another limit, or another way, or begin to. Clients keep what they have until they are told. What they report
// next counts for no more than was paid for: it covers the time before. A strict window with another number is the same counter, so what
// was paid in it stays paid.
func (b *Bucket) Become(c Config, at Micros) {
	now := b.advance(at)
	next := New(c, now)
	next.clock, next.holders, next.byID, next.callers = b.clock, b.holders, b.byID, b.callers
	next.actions, next.round, next.follows = b.actions, b.round, b.follows
	if b.Mode == Strict && c.Mode == Strict && c.Limit.Burst == 0 && c.Limit.Window == b.Limit.Window && b.ends > 0 {
		next.account, next.due = b.account, now
		next.left += float64(c.Limit.Hits) - float64(b.Limit.Hits)
	}
	*b = *next
	for _, h := range b.holders {
		h.escrow, h.accrued, h.moved = 0, now, now-each
	}
	b.pardon()
	b.soon(now)
}

// Rule says that something else than the limit decides, so that all clients are told the same: to allow or to deny everything, or to
// forget the bucket. That is an answer to [Bucket.Ask].
func (b *Bucket) Rule(k Kind, at Micros) {
	now := b.advance(at)
	if b.ruling != k {
		b.ruling, b.decided, b.at, b.divideAt = k, true, 0, now
		for _, h := range b.holders {
			h.told = min(h.told, h.heard-1)
		}
	}
	b.asking, b.failed = false, 0
	b.again(now)
}

// again asks again in a second, if there is a reason to.
func (b *Bucket) again(now Micros) {
	if len(b.holders) > 0 || b.follows {
		b.due = min(b.due, now+b.interval())
	}
}

// tellRuled tells clients what is ruled, that have reported since they were told. A client with requests that forgets a bucket reports it again
// within milliseconds, so one that was told nothing is not told to: it does what its own configuration says.
func (b *Bucket) tellRuled(now Micros) {
	for _, h := range b.holders {
		if h.state == gone || h.told >= h.heard || b.ruling == Abandon && h.active == h.heard && h.state == waiting {
			continue
		}
		h.state = denied
		h.end(now + arrival)
		b.tell(h, now, Assignment{Kind: b.ruling, TTL: usualTTL})
		if b.ruling == Abandon {
			h.state = gone
		}
	}
}

// Follow makes b ask also while it has no holders, so that other replicas learn what RLS callers ask for at this one.
func (b *Bucket) Follow(at Micros) {
	now := b.advance(at)
	b.follows = true
	b.soon(now)
}

// Alone reports whether b has neither holders nor other replicas.
func (b *Bucket) Alone() bool { return len(b.holders) == 0 && len(b.others) == 0 }

// Leave says that a client's stream has ended. What it was assigned stays in force until it runs out.
func (b *Bucket) Leave(at Micros, id string) {
	now := b.advance(at)
	h := b.byID[id]
	if h == nil || h.state == gone {
		return
	}
	b.accrue(h, now)
	b.lose(h, now)
	b.soon(now)
}

// lose notes that h cannot be reached.
func (b *Bucket) lose(h *holder, now Micros) {
	h.state = gone
	if b.Mode == Fast {
		h.end(now + handover)
	}
}

// Close says that the streams of this replica are about to end. It returns each assignment once more, so that it lasts a full TTL.
// [Bucket.Farewell] is what to tell the other replicas then.
func (b *Bucket) Close(at Micros) []Action {
	actions := b.Renew(at, "")
	b.closed = true
	return actions
}

// Farewell returns the last row of a bucket that was closed, if there are other replicas to tell.
func (b *Bucket) Farewell(at Micros) (Row, bool) {
	if !b.Divides() || b.Replica == "" {
		return Row{}, false
	}
	now := b.advance(at)
	b.plan(now)
	return b.row(now, 0), true
}

// soon makes the next division one that follows an event. The store is asked once a second nevertheless.
func (b *Bucket) soon(now Micros) {
	b.divideAt = min(b.divideAt, now+coalesce)
	b.due = min(b.due, max(now+coalesce, b.asked+each))
}

// advance brings b to a time.
func (b *Bucket) advance(at Micros) Micros {
	now := b.clock.read(at)
	if b.ends > 0 && now >= b.ends {
		b.turn(b.ends)
	}
	return now
}

// Next returns the time at which [Bucket.Ask] or [Bucket.Actions] has something to do.
func (b *Bucket) Next() Micros {
	next := never
	if b.at > 0 && b.failed == 0 {
		next = min(next, b.divideAt)
	}
	if !b.asking && b.due != never {
		next = min(next, max(b.due, b.paused))
	}
	if b.ends > 0 && (len(b.holders) > 0 || b.follows) {
		next = min(next, b.ends)
	}
	if b.ruling != TokenBucket {
		next = min(next, b.divideAt)
	}
	if next == never {
		return never
	}
	return b.clock.outside(next)
}

// Divides reports whether the limit is divided.
func (b *Bucket) Divides() bool { return b.decided && b.ruling == TokenBucket }

// Ask returns what to ask the store for, if it is time. [Bucket.Answer] or [Bucket.Failed] must follow.
func (b *Bucket) Ask(at Micros) (Ask, bool) {
	now := b.advance(at)
	if b.asking || now < max(b.due, b.paused) {
		return Ask{}, false
	}
	b.asking, b.asked, b.due = true, now, never
	b.met = b.met && (b.Replica == "" || now-b.heard <= dead)
	b.drop(now)
	if !b.Divides() {
		return Ask{}, true
	}
	for _, h := range b.holders {
		b.accrue(h, now)
	}
	b.plan(now)
	var a Ask
	if b.met { // else it does not know yet what others claim
		a = b.need(now)
	}
	a.Row = b.row(now, float64(a.Hits))
	return a, true
}

// Pause makes b ask no question before a time, even if one is due, unless a window begins.
func (b *Bucket) Pause(until Micros) { b.paused = b.clock.inside(until) }

// Answer divides what the store has granted.
func (b *Bucket) Answer(at Micros, a Answer) {
	now := b.advance(at)
	b.asking = false
	b.again(now)
	if !b.met {
		b.hear(now, a.Rows)
		b.met, b.due, b.paused = true, now, 0
		return
	}
	b.failed = 0
	if !b.receive(now, &a) {
		return
	}
	b.hear(now, a.Rows)
	b.divide(now)
}

// interval returns the time between two questions. A window that is shorter than it would be missed.
func (b *Bucket) interval() Micros {
	if b.Limit.Overdraft || !b.Divides() {
		return each
	}
	return min(each, b.Limit.Window/4)
}

// divide divides what is there.
func (b *Bucket) divide(now Micros) {
	b.divideAt, b.jumps = never, 0
	b.plan(now)
	b.apply(now)
}

// Failed says that the store did not answer. In fast mode shares are renewed for a TTL, and in strict mode as far as they are paid
// for. Then the fallback takes their place, as it does immediately for clients without a share.
func (b *Bucket) Failed(at Micros, f Fallback) {
	now := b.advance(at)
	b.asking, b.fallback, b.ruling = false, f, TokenBucket
	b.due = min(b.due, now+each)
	if b.failed == 0 {
		b.failed = now
		b.pardon()
	}
	for _, h := range b.holders {
		if h.told < h.heard && (h.state == waiting || h.state == denied) && (f != Keep || b.Mode == Strict) {
			b.reject(h, now)
		}
	}
	switch {
	case !b.decided:
	case b.Mode == Strict && b.at == b.start:
		b.stop(now)
	case b.Mode == Strict:
		b.spend(now)
	case f == Keep:
		b.plan(now)
		b.apply(now)
	case now-b.failed <= usualTTL*second:
		b.renew(now)
	default:
		b.stop(now)
	}
}

// Renew returns the assignment of a client, or of all if id is empty, once more as far as it is paid for, so that it lasts
// a full TTL from now on: for a replica that is about to close the stream.
func (b *Bucket) Renew(at Micros, id string) []Action {
	now := b.advance(at)
	for _, h := range b.holders {
		if id == "" || id == h.ID {
			h.told = min(h.told, h.heard-1)
		}
	}
	switch {
	case !b.Divides():
	case b.Mode == Strict:
		b.spend(now)
	default:
		b.renew(now)
	}
	return b.Actions(at)
}

// Actions returns what to tell the clients now. The slice is valid until the next call of a method.
func (b *Bucket) Actions(at Micros) []Action {
	now := b.advance(at)
	if now >= b.divideAt && b.at > 0 && b.failed == 0 { // the first division waits for the store
		b.divide(now)
	}
	if b.ruling != TokenBucket {
		b.divideAt = never
		b.tellRuled(now)
	}
	actions := b.actions
	b.actions, b.round = b.actions[:0], b.round+1
	return actions
}

// drop forgets holders that have nothing in force any more, and abandons those that are idle or no longer report the bucket.
func (b *Bucket) drop(now Micros) {
	for _, h := range b.holders {
		h.forget(h.heard)
		if b.Mode == Fast && h.state != gone && !h.reachable(now) { // its connection is broken, and it may report elsewhere
			b.lose(h, now)
			continue
		}
		idle := now-h.active > idleAfter && now-h.heard <= h.interval
		silent := now-h.heard > max(usualTTL*second, 3*h.interval)
		if h.state != gone && b.Divides() && (idle || silent) {
			b.tell(h, now, Assignment{Kind: Abandon})
			h.state = gone
			if b.Mode == Fast && idle { // else it may not hear it
				h.end(now + arrival)
			}
		}
	}
	b.holders = slices.DeleteFunc(b.holders, func(h *holder) bool {
		if h.state != gone || h.until() > now {
			return false
		}
		if b.Mode == Strict {
			b.paid -= b.promised(h)
		}
		b.returns -= b.returning(h)
		b.escrow -= h.escrow
		delete(b.byID, h.ID)
		return true
	})
	if len(b.holders) == 0 && !b.follows {
		b.due = never
	}
}
