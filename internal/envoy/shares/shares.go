// Package shares divides a limit among holders that decide on their own. Holders are clients that admit requests with an assigned token
// bucket and report their usage every few seconds. They come and go, report late or not at all, and fail.
//
// All functions depend only on earlier calls and on the time, which is an argument. The package reads no clock, does not wait, and does
// no I/O. A caller keeps one [Bucket] for each divided limit. It passes on the clients' reports, sends the bucket's questions to the
// store, and sends the resulting actions to the clients:
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
//  1. Demand (demand.go). Requests reported, allowed or not, over the time that the report covers. Noise is smoothed; a
//     jump takes effect immediately. Callers that ask the store themselves (RLS) are one more claim.
//  2. Capacity (fast.go, strict.go). The hits per second that all replicas together may hand out.
//  3. Parts (divide.go). Each claim gets its max–min fair part by weight. The rest is headroom.
//  4. Shares (apply.go). A share changes if that is worth a message, and both the old and the new one are paid for until the
//     message has arrived. An assignment is repeated after each report and lasts three report intervals.
//
// A division follows each jump, join and departure after 100 ms, and each answer of the store, which is asked once a second.
//
// # The bound
//
// The limit is a counter in the store that other callers use as well. Every second, a bucket pays for the next second of all its shares,
// used or not. A report returns unused hits.
//
// [Fast] admits at most burst + rate × time + E. E is the sum of 1.3 s of the rate for each replica that has just started or reconnected
// to the store, or for one replica if there are none; one hit for each client; and the usage of clients without an assignment or out of
// reach. While the store does not answer, E grows by up to one burst.
//
// [Strict] admits at most the limit, plus the usage of clients without an assignment. If RLS callers use up a new window immediately, or
// the store is unavailable when it begins, clients continue to use their shares until they receive a message. Strict takes hits from the
// counter before assigning them: everything that an assignment can admit until it has expired and Delivery has passed. Messages must not
// take longer than that.
//
// # Replicas
//
// Replicas share one table in the store, with a [Row] each, and replace their row with each question. A row does not list clients. It
// contains their combined claim near the current fair level: the sum of the demands below the level, and the weight of the others. From
// these, every replica computes the level again. This is Newton's method on a concave function: within a few exchanges, the level rises
// from below to the level that a single replica would find.
//
// When a replica closes its streams or fails, the others reserve the shares of its clients, and pay for them, until these clients have
// reported elsewhere. A share is not reserved if demand was below the limit when its stream ended: most such clients have been stopped.
//
// This package is optional: the core works without it.
package shares

import (
	"math"
	"slices"
)

// Times of the division.
const (
	usualInterval = 5 * second // between Envoy's reports
	usualTTL      = 15         // seconds: three intervals
	minTTL        = 2          // seconds
	each          = second     // time between two divisions
	coalesce      = second / 10
	arrival       = second / 5 // of a message to a connected client
	idleAfter     = 60 * second
	never         = Micros(math.MaxInt64)

	// A client whose stream has ended reports elsewhere at its next interval. Its share is reserved until then.
	handover = usualInterval + 2*second
)

// Hysteresis: a client rounds its tokens down at each change, so changes, and divisions, must be worth it.
const (
	minMove   = 0.1  // of a rate
	minJump   = 0.01 // of the rate handed out: smaller jumps of demand, in total, wait for the next second
	tolerance = 1.03 // of the allowed rate; beyond it, every share shrinks, or all that can grow
)

// Bucket is one limit and its holders at one replica. It is not safe for concurrent use.
type Bucket struct {
	Config
	clock   clock
	holders []*holder
	byID    map[string]*holder

	account
	stray   stray
	burn    float64 // strict: the part of the requested hits that is dropped
	callers demand  // demand of RLS callers

	synced   bool   // the rows of the other replicas have been received
	lastRows Micros // time of their last rows
	others   []Row
	claims   []Claim // of the live holders and of RLS callers; reused by the next plan
	claim    Claim   // sum of claims
	level    float64 // fair level for which claims are made
	cap      float64 // hits per second that all replicas together may hand out
	want     float64 // this replica's part of cap
	portion  float64 // holders' portion of want
	jumps    float64 // sum of the jumps of demand since the last division, in hits per second

	due         Micros // time of the next question to the store
	requestedAt Micros // time of the last question
	asking      bool   // an answer is outstanding
	divideAt    Micros // time of the next division after an event
	paused      Micros // no question before this time, even if due
	failed      Micros // first failure of the store since its last answer, or 0
	fallback    Fallback
	decided     bool // the limit is divided, or ruling replaces the division
	ruling      Kind // action for all clients, or TokenBucket
	closed      bool // the replica's streams have been closed
	follows     bool // asks even without holders
	actions     []Action
	round       uint64 // number of the current batch of actions, from 1
}

// New returns a bucket without holders. With the zero Config, it divides nothing: until [Bucket.Become] or [Bucket.Rule], clients get no
// assignment, or that of the fallback.
func New(c Config, now Micros) *Bucket {
	if c.Delivery == 0 {
		c.Delivery = usualInterval
	}
	b := &Bucket{
		Config: c, decided: c.Limit != Limit{}, synced: c.Replica == "", clock: clock{wall: now, now: now}, byID: map[string]*holder{}, round: 1,
		level: math.Inf(1), requestedAt: now - each, due: never, divideAt: never,
	}
	b.stray.at, b.funded, b.inherited = now, math.Inf(1), now
	b.left = float64(c.Limit.Burst)
	if c.Limit.Burst == 0 {
		b.left = float64(c.Limit.Hits)
	}
	return b
}

// Become changes the limit or the mode of b, or starts the division. Clients keep their assignments until the next message. Their next
// reports count only up to the hits that were paid for, because they cover the time before. A strict window with another number is the
// same counter, so hits paid for in it stay paid.
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

// Rule replaces the division by the same action for all clients: allow or deny everything, or abandon the bucket. It answers a
// [Bucket.Request].
func (b *Bucket) Rule(k Kind, at Micros) {
	now := b.advance(at)
	if b.ruling != k {
		b.ruling, b.decided, b.at, b.divideAt = k, true, 0, now
		for _, h := range b.holders {
			h.assignedAt = min(h.assignedAt, h.lastReport-1)
		}
	}
	b.asking, b.failed = false, 0
	b.schedule(now)
}

// schedule schedules the next request after an interval if b has holders or follows RLS callers.
func (b *Bucket) schedule(now Micros) {
	if len(b.holders) > 0 || b.follows {
		b.due = min(b.due, now+b.interval())
	}
}

// tellRuled sends the ruling to clients that have reported since their last message. A client with traffic that abandons a bucket reports
// it again within milliseconds. So a client without an assignment is not told to abandon the bucket; its own configuration applies.
func (b *Bucket) tellRuled(now Micros) {
	for _, h := range b.holders {
		if h.state == streamEnded || h.assignedAt >= h.lastReport || b.ruling == Abandon && h.active == h.lastReport && h.state == waiting {
			continue
		}
		h.state = denied
		h.end(now + arrival)
		b.tell(h, now, Assignment{Kind: b.ruling, TTL: usualTTL})
		if b.ruling == Abandon {
			h.state = streamEnded
		}
	}
}

// Follow makes b ask even without holders, so that other replicas receive the demand of this replica's RLS callers.
func (b *Bucket) Follow(at Micros) {
	now := b.advance(at)
	b.follows = true
	b.soon(now)
}

// Idle reports whether b has neither holders nor other replicas.
func (b *Bucket) Idle() bool { return len(b.holders) == 0 && len(b.others) == 0 }

// Leave records the end of a client's stream. Its assignments remain in force until they expire. In fast mode, they are reserved for it
// while the demand exceeds the limit. Below the limit, the client has probably been stopped, and another one needs its share.
func (b *Bucket) Leave(at Micros, id string) {
	now := b.advance(at)
	h := b.byID[id]
	if h == nil || h.state == streamEnded {
		return
	}
	b.accrue(h, now)
	if b.Mode == Fast && b.wants() <= tolerance*b.Limit.rate() {
		h.released, h.unpaid = true, true // if it comes back, what it used is not charged, as at another replica
	}
	b.lose(h, now)
	b.soon(now)
}

// lose records that h cannot be reached.
func (b *Bucket) lose(h *holder, now Micros) {
	h.state = streamEnded
	if b.Mode == Fast {
		h.end(now + handover)
	}
}

// Close prepares for the end of this replica's streams. It returns each assignment once more, so that it lasts a full TTL. Call
// [Bucket.Farewell] afterwards for the row to send to the other replicas.
func (b *Bucket) Close(at Micros) []Action {
	actions := b.Renew(at, "")
	b.closed = true
	return actions
}

// Farewell returns the last row of a closed bucket. ok is false if there are no other replicas.
func (b *Bucket) Farewell(at Micros) (Row, bool) {
	if !b.Divides() || b.Replica == "" {
		return Row{}, false
	}
	now := b.advance(at)
	b.plan(now)
	return b.row(now, 0), true
}

// soon schedules a division after an event. The store is still asked only once a second.
func (b *Bucket) soon(now Micros) {
	b.divideAt = min(b.divideAt, now+coalesce)
	b.due = min(b.due, max(now+coalesce, b.requestedAt+each))
}

// advance moves b to a time.
func (b *Bucket) advance(at Micros) Micros {
	now := b.clock.read(at)
	if b.ends > 0 && now >= b.ends {
		b.turn(b.ends)
	}
	return now
}

// Next returns the time at which [Bucket.Request] or [Bucket.Actions] is due.
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

// Request returns the next request to the store if one is due. The caller must then call [Bucket.Answer] or [Bucket.Failed].
func (b *Bucket) Request(at Micros) (Request, bool) {
	now := b.advance(at)
	if b.asking || now < max(b.due, b.paused) {
		return Request{}, false
	}
	b.asking, b.requestedAt, b.due = true, now, never
	b.synced = b.synced && (b.Replica == "" || now-b.lastRows <= dead)
	b.drop(now)
	if !b.Divides() {
		return Request{}, true
	}
	for _, h := range b.holders {
		b.accrue(h, now)
	}
	b.plan(now)
	var a Request
	if b.synced { // otherwise the claims of others are still unknown
		a = b.need(now)
	}
	a.Row = b.row(now, float64(a.Hits))
	return a, true
}

// Pause delays questions until the given time, even if one is due, unless a window begins.
func (b *Bucket) Pause(until Micros) { b.paused = b.clock.inside(until) }

// Answer divides the hits granted by the store.
func (b *Bucket) Answer(at Micros, a Answer) {
	now := b.advance(at)
	b.asking = false
	b.schedule(now)
	if !b.synced {
		b.receiveRows(now, a.Rows)
		b.synced, b.due, b.paused = true, now, 0
		return
	}
	b.failed = 0
	if !b.receive(now, &a) {
		return
	}
	b.receiveRows(now, a.Rows)
	b.divide(now)
}

// interval returns the time between two questions. It is shorter for short windows, which would otherwise be missed.
func (b *Bucket) interval() Micros {
	if b.Limit.Overdraft || !b.Divides() {
		return each
	}
	return min(each, b.Limit.Window/4)
}

// divide plans and applies a division.
func (b *Bucket) divide(now Micros) {
	b.divideAt, b.jumps = never, 0
	b.plan(now)
	b.apply(now)
}

// Failed records that the store did not answer. In fast mode shares are renewed for a TTL, in strict mode as far as they are paid for.
// Then the fallback replaces them; for clients without a share it applies immediately.
func (b *Bucket) Failed(at Micros, f Fallback) {
	now := b.advance(at)
	b.asking, b.fallback, b.ruling = false, f, TokenBucket
	b.due = min(b.due, now+each)
	if b.failed == 0 {
		b.failed = now
		b.pardon()
	}
	for _, h := range b.holders {
		if h.assignedAt < h.lastReport && (h.state == waiting || h.state == denied) && (f != Keep || b.Mode == Strict) {
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

// Renew returns the assignment of a client, or of all clients if id is empty, once more as far as it is paid for, so that it lasts a full
// TTL. It is for a replica that is about to close the stream.
func (b *Bucket) Renew(at Micros, id string) []Action {
	now := b.advance(at)
	for _, h := range b.holders {
		if id == "" || id == h.ID {
			h.assignedAt = min(h.assignedAt, h.lastReport-1)
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

// Actions returns the actions for clients. The slice is valid until the next call of a method.
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

// drop removes holders without an assignment in force, and abandons those that are idle or no longer report the bucket.
func (b *Bucket) drop(now Micros) {
	for _, h := range b.holders {
		h.forget(h.lastReport)
		if b.Mode == Fast && h.state != streamEnded && !h.reachable(now) { // its connection is broken, and it may report elsewhere
			b.lose(h, now)
			continue
		}
		idle := now-h.active > idleAfter && now-h.lastReport <= h.interval
		silent := now-h.lastReport > max(usualTTL*second, 3*h.interval)
		if h.state != streamEnded && b.Divides() && (idle || silent) {
			b.tell(h, now, Assignment{Kind: Abandon})
			h.state = streamEnded
			if b.Mode == Fast && idle { // a silent client may not receive the message
				h.end(now + arrival)
			}
		}
	}
	b.holders = slices.DeleteFunc(b.holders, func(h *holder) bool {
		if h.state != streamEnded || h.until() > now {
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
