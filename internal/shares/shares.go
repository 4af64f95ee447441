// Package shares divides a limit among holders that decide by themselves: clients that admit requests by a token bucket which
// they were assigned, and report every few seconds what they did. They come and go, report late or not at all, and die.
//
// Everything here is a function of what was called before and of the time, which is an argument. Nothing reads a clock,
// waits, or does I/O. A caller keeps one [Bucket] for each limit that is divided, passes on what clients report, asks the store
// what the bucket wants to ask, and tells clients what it returns:
//
//	bucket.Report(now, client, usage) // as reports come, and Leave as streams end
//	for now >= bucket.Next() {
//		if ask, ok := bucket.Ask(now); ok {
//			bucket.Answer(now, store.Lease(ask)) // or bucket.Failed(now)
//		}
//		for _, action := range bucket.Actions(now) { … }
//	}
//
// # The division
//
//  1. Demand (demand.go). What a client reports, allowed or not, over the time since its last report, is its demand. Noise is
//     smoothed, and a jump is believed immediately.
//  2. Level (level.go). What may be handed out follows from one level of the whole limit: the hits that are left in the store,
//     those that were leased and not used, less the tokens that clients may hold. A full bucket hands out more than the
//     limit's rate, an empty one less, so that what was admitted beyond the rate is paid back within two intervals.
//  3. Parts (divide.go). Each demand gets its max–min fair part by weight. What is left goes out as headroom, and nothing
//     of it is kept back: headroom under contention would be taken from those that need it.
//  4. Shares (apply.go). A share that shrinks does so immediately; one that grows does so 200 ms later, when the clients that pay
//     for it have heard. If such a client is silent, it does so when its assignment runs out. Small moves are not
//     worth it, since a client rounds its tokens at each change. An assignment is renewed after each report, so it lasts
//     three intervals beyond the last one.
//
// A division follows each jump, join and departure after 100 ms, and each answer of the store, which is asked once a second.
//
// # What is used is leased before
//
// The limit is a counter in the store that others use as well. So every hit that a client may use is debited there first
// (lease.go). A bucket asks to debit so many hits, is told how many were, and hands out no more. It never hands out on credit.
// How sure that is depends on the mode.
//
// [Fast] leases what clients are expected to use within the next second, and corrects that by reports. In any time T it admits
// at most burst + rate·T + E, or the hits of a window + E. E is
//
//   - the tokens of each assignment to a client that had none in force, and of each raise of a burst, at most a second of
//     the new rate;
//   - what clients use beyond what the bucket presumes, because a message took longer than 200 ms or was lost: the difference
//     of the rates, until the message arrives or the old assignment runs out;
//   - what clients that cannot be reached hold beyond what would be handed out now, until it runs out;
//   - what clients admit without any assignment, before their first one or after their last, and what they could not report,
//     because their stream broke or their replica died;
//   - use that a full bucket pays for, when it is reported, with what it lost in the five seconds before, though it may have lost
//     that before the use;
//   - of what clients report, what exceeds twice the burst and the rate since the last answer, or of five seconds;
//   - while the store does not answer: what shares exceed the limit's rate by, for two TTLs at most.
//
// [Strict] leases all that clients may admit with what they were sent: their tokens, and their rate until the assignment has run
// out and Delivery has passed, since the TTL begins at the receipt. Nothing is credited for an interval whose report is
// missing, and nothing is handed on before it has come free: when an assignment has run out, or when a report comes Delivery or
// more after a lower one was sent, which must have arrived before that report was made. No window admits more than its limit,
// and a bucket no more than burst + rate·T, but for
//
//   - what clients admit before their first assignment, which is debited when it is reported;
//   - messages that are later than Delivery allows: the caller closes streams that are silent and connections that do not
//     acknowledge;
//   - hits that others take at the very beginning of a window, before this package has leased what older assignments
//     promise in it. The bucket asks at that moment. If the store does not answer then, others may have taken them when it
//     does, or the replica may be dead;
//   - while the store does not answer, callers of RLS: what clients hold of a token bucket stays in force as the bucket in the store
//     refills, so others may take up to a burst more than the limit has once the store answers them.
//
// When a window is used up, all holders deny everything until its end.
//
// A share is a rate of a whole number of hits an hour, since Envoy refills over any interval smoothly and takes whole seconds
// only; shares add up to what is handed out to the last hit.
//
// # Replicas
//
// Several replicas divide one limit in two levels: the replicas hold the limit, and each divides its part among its clients.
// They share one table in the store, with one [Row] a replica, and replace their row as they lease, in one step.
// A row does not list clients. It holds what they claim together near the present fair level: the sum of the demands below
// it, and the weight of the others. From these every replica computes the level again, which is Newton's method on
// a concave function: the level rises from below, within a few exchanges, to the one that a single replica would find.
// A part grows only as far as the parts of the others leave room. A replica that dies stops writing its row. In fast mode its
// clients have connected elsewhere when the row ends; in strict mode the row lasts until all that it promised has run out,
// and the others debit what it promised in the next window.
//
// After a restart there is no state. A client that reports a time that has elapsed comes with an assignment of an earlier
// life: for an interval and a second, its share is what it says it used, and no more.
package shares

import (
	"math"
	"slices"
)

// Mode says what a bucket guarantees; see the package comment.
type Mode uint8

// Modes.
const (
	Fast   Mode = iota // follows demand within two intervals; usual for token buckets
	Strict             // never exceeds the limit; usual for windows, of a minute or more, and for bursts of 30 s or more of the rate
)

// Limit is what is divided.
type Limit struct {
	Hits   uint64 // a window
	Window Micros
	Burst  uint64 // of a token bucket; 0 for a fixed window
}

// rate returns the hits a second of l.
func (l *Limit) rate() float64 { return float64(l.Hits) / seconds(l.Window) }

// Config describes a [Bucket]. If it changes, a new bucket replaces the old one, and clients report to it as after a restart.
type Config struct {
	Limit    Limit
	Mode     Mode
	Replica  string // the name of this replica in [Row]
	Delivery Micros // what an assignment and a report may take to arrive, together; 0 means 5 s
	Spread   uint32 // seconds to add to every TTL, so that not all buckets of a lost stream run out together
}

// Usage is what a client reports of a bucket.
type Usage struct {
	Elapsed Micros // as the client says; it counts only in the first report of a stream
	Allowed uint64
	Denied  uint64
}

// Busy reports whether there were requests.
func (u *Usage) Busy() bool { return u.Allowed+u.Denied > 0 }

// Action is what to tell a client.
type Action struct {
	Client string
	Tag    any // of the client
	Assignment
}

// Times of the division.
const (
	usualInterval = 5 * second // between the reports of Envoy
	usualTTL      = 15         // seconds: three intervals
	leastTTL      = 2          // seconds
	each          = second     // time between two divisions
	coalesce      = second / 10
	growAfter     = second / 5 // a share grows this long after those that pay for it have shrunk
	idleAfter     = 60 * second
	never         = Micros(math.MaxInt64)
)

// Hysteresis: a client rounds its tokens down at each change, so changes must be worth it, and so must a division.
const (
	leastMove = 0.1  // of a rate
	leastJump = 0.01 // of what is handed out: jumps of demand that are less, together, wait for the next second
	tolerance = 1.03 // of what may be handed out; above it every share shrinks
)

// Bucket is one limit and its holders at one replica. It must not be used concurrently.
type Bucket struct {
	Config
	clock   clock
	holders []*holder
	byID    map[string]*holder

	account
	burn  float64 // of the hits that were asked for: those that are dropped
	spent bool    // the window is used up: everything is rejected until its end

	others  []Row
	claims  []Claim // of the live holders; room for the next plan
	claim   Claim   // of all of them
	level   float64 // the fair level that claims are made at
	cap     float64 // hits a second that all replicas may hand out
	want    float64 // the part of it that this replica asked for
	granted float64 // the part that the others leave to it
	portion float64 // of that part: what is not held by clients that have gone
	jumps   float64 // of demand since the last division, in hits a second

	due      Micros // the next question to the store
	asked    Micros // the last one
	asking   bool   // an answer is outstanding
	divideAt Micros // the next division that follows an event
	growAt   Micros // when shares grow
	paused   Micros // no question before, whatever is due
	failed   Micros // the first failure of the store since its last answer, or 0
	actions  []Action
	round    uint64 // of actions, from 1
}

// New returns a bucket without holders.
func New(c Config, now Micros) *Bucket {
	if c.Delivery == 0 {
		c.Delivery = usualInterval
	}
	b := &Bucket{
		Config: c, clock: clock{wall: now, now: now}, byID: map[string]*holder{}, round: 1,
		level: math.Inf(1), asked: now - each, due: never, divideAt: never, growAt: never,
	}
	b.left = float64(c.Limit.Burst)
	if c.Limit.Burst == 0 {
		b.left = float64(c.Limit.Hits)
	}
	return b
}

// Report takes a client's report, the first of which makes it a holder.
func (b *Bucket) Report(at Micros, c Client, u Usage) {
	now := b.advance(at)
	h := b.byID[c.ID]
	if h == nil {
		b.join(now, c, u)
		return
	}
	h.Client = c
	gap := now - h.heard
	most := h.interval + h.interval/2
	if b.Mode == Strict {
		most = h.interval + reportDelay
	}
	complete := h.state != gone && gap <= most
	b.accrue(h, now)
	allowed := min(float64(u.Allowed), b.plausible(h, now))
	b.settle(h, now, allowed, complete)
	if h.state == gone {
		h.ticking = false
	}
	if h.state == gone || h.state == assigned && h.until() <= now {
		h.state = waiting
		b.soon(now)
	}
	if complete && gap > coalesce {
		span, before, jump := seconds(gap), h.demand.rate, false
		h.demand, jump = h.demand.observe(float64(u.Allowed+u.Denied)/span, span)
		h.recent, h.saturated = allowed/span, saturated(u)
		if jump {
			b.jumps += math.Abs(h.demand.rate - before)
		}
		if b.jumps > leastJump*b.portion {
			b.soon(now)
		}
	}
	if h.ticking { // the first report after the one that opens a stream comes early
		h.interval += (min(gap, 2*h.interval) - h.interval) / 4
	}
	if u.Busy() {
		h.active = now
	}
	h.heard, h.ticking = now, true
	b.due = min(b.due, now+each)
}

// join makes a client a holder. What it admitted before is debited. If it comes from another replica, or from the life of
// this one before a restart, it has an assignment already, and keeps what it was using for an interval and a second.
func (b *Bucket) join(now Micros, c Client, u Usage) {
	h := &holder{Client: c, interval: usualInterval, heard: now, active: now, accrued: now, moved: now - each}
	allowed := min(float64(u.Allowed), b.most(h.interval))
	if span := seconds(u.Elapsed); span >= 1 {
		h.demand, _ = h.demand.observe(float64(u.Allowed+u.Denied)/span, span)
		h.recent, h.saturated = allowed/span, saturated(u)
		h.implied, h.settles = h.recent, now+usualInterval+second
	}
	b.paid -= allowed
	b.holders = append(b.holders, h)
	b.byID[c.ID] = h
	b.soon(now)
}

// most returns the hits that the limit has for a time.
func (b *Bucket) most(span Micros) float64 {
	return float64(max(b.Limit.Burst, b.Limit.Hits)) + b.Limit.rate()*seconds(span)
}

// plausible returns the hits that h may have been allowed since its last report, so that a client that lies takes little from
// the others. If it had an assignment all the time, it is what that allows; in fast mode twice that, since messages may be late.
func (b *Bucket) plausible(h *holder, now Micros) float64 {
	switch {
	case !h.ticking || h.state != assigned || h.until() <= now:
		return b.most(now - h.heard)
	case b.Mode == Strict:
		return h.tokens + h.hits(h.heard, now)
	}
	return 2 * (h.burst(h.heard) + h.hits(h.heard, now))
}

// Leave says that a client's stream has ended. What it was assigned stays in force until it runs out.
func (b *Bucket) Leave(at Micros, id string) {
	now := b.advance(at)
	if h := b.byID[id]; h != nil {
		b.accrue(h, now)
		h.state = gone
		b.soon(now)
	}
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
	next := b.growAt
	if b.at > 0 && b.failed == 0 {
		next = min(next, b.divideAt)
	}
	if !b.asking && b.due != never {
		next = min(next, max(b.due, b.paused))
	}
	if b.ends > 0 && len(b.holders) > 0 {
		next = min(next, b.ends)
	}
	if next == never {
		return never
	}
	return b.clock.outside(next)
}

// Ask returns what to ask the store for, if it is time. [Bucket.Answer] or [Bucket.Failed] must follow.
func (b *Bucket) Ask(at Micros) (Ask, bool) {
	now := b.advance(at)
	if b.asking || now < max(b.due, b.paused) {
		return Ask{}, false
	}
	b.asking, b.asked, b.due = true, now, never
	b.drop(now)
	for _, h := range b.holders {
		b.accrue(h, now)
	}
	b.forgo(now)
	b.plan(now)
	return Ask{Hits: b.need(now), Row: b.row(now)}, true
}

// Pause makes b ask no question before a time, even if one is due, unless a window begins.
func (b *Bucket) Pause(until Micros) { b.paused = b.clock.inside(until) }

// Answer divides what the store has granted.
func (b *Bucket) Answer(at Micros, a Answer) {
	now := b.advance(at)
	b.asking, b.failed = false, 0
	if len(b.holders) > 0 {
		b.due = min(b.due, now+each)
	}
	if !b.receive(now, &a) {
		return
	}
	b.hear(now, a.Rows)
	b.divide(now)
}

// divide divides what is there.
func (b *Bucket) divide(now Micros) {
	b.divideAt, b.jumps = never, 0
	b.plan(now)
	b.apply(now)
}

// Failed says that the store did not answer. Shares are as they were, and are renewed: in fast mode for a TTL, in strict
// mode as far as they are paid for. It returns false when that is over.
func (b *Bucket) Failed(at Micros) bool {
	now := b.advance(at)
	b.asking = false
	b.due = min(b.due, now+each)
	if b.failed == 0 {
		b.failed = now
	}
	switch {
	case b.Mode == Strict:
		b.spend(now)
	case now-b.failed > usualTTL*second:
		return false
	default:
		b.renew(now)
	}
	return true
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
	if b.Mode == Strict {
		b.spend(now)
	} else {
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
	if now >= b.growAt {
		b.grow(now)
	}
	actions := b.actions
	b.actions, b.round = b.actions[:0], b.round+1
	return actions
}

// drop forgets holders that have nothing in force any more, and abandons those that are idle or no longer report the bucket.
func (b *Bucket) drop(now Micros) {
	for _, h := range b.holders {
		h.forget(h.heard)
		idle := now-h.active > idleAfter && now-h.heard <= h.interval
		silent := now-h.heard > max(usualTTL*second, 3*h.interval)
		if h.state != gone && (idle || silent) {
			b.tell(h, now, Assignment{Kind: Abandon})
			h.state = gone
			if n := len(h.sent); n > 0 && b.Mode == Fast && idle { // else it may not hear it
				h.sent[n-1].until = min(h.sent[n-1].until, now+growAfter)
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
		delete(b.byID, h.ID)
		return true
	})
	if len(b.holders) == 0 {
		b.due = never
	}
}

// plan sets the target of every holder.
func (b *Bucket) plan(now Micros) {
	weight, leaving := 0.0, 0.0
	b.cap = b.capacity(now)
	for _, h := range b.holders {
		if h.state == gone {
			leaving += h.held(now)
		} else {
			weight += h.Weight
		}
	}
	b.claims = b.claims[:0]
	for _, h := range b.holders {
		if h.state == gone {
			continue
		}
		want := h.demand.rate
		if !h.demand.known && b.Mode == Fast { // it has not shown a demand: half an even share
			want = b.cap * h.Weight / weight / 2
		}
		b.claims = append(b.claims, claimOf(want, h.Weight))
	}
	part := b.part(b.claims)
	if b.Mode == Fast {
		part = max(0, part-leaving)
	}
	targets, level := divide(part, b.claims)
	if len(b.others) == 0 {
		b.level = level
	}
	round(targets)
	i := 0
	for _, h := range b.holders {
		if h.state == gone {
			continue
		}
		h.target = targets[i]
		if b.Mode == Strict { // what is not needed stays in the store
			h.target = min(h.target, b.useful(h, part*h.Weight/weight, b.Limit.rate()*h.Weight/weight))
		}
		if now < h.settles {
			h.target = min(h.target, h.implied)
		}
		i++
	}
	b.portion = part
}

// useful returns what a holder can use in strict mode, where part and rate are its even share of what may be handed out and of the
// limit's rate. In a long window the first may be many times the second.
func (b *Bucket) useful(h *holder, part, rate float64) float64 {
	least := part
	if h.demand.known {
		least = min(part, rate)
	}
	return (1 + strictHeadroom) * max(h.demand.rate, leastClaim*least)
}
