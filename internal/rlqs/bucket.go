package rlqs

import (
	"context"
	"encoding/base64"
	"hash/crc32"
	"math/rand/v2"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/shares"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Times of a bucket.
const (
	askEvery   = time.Second            // what is in force, where nothing is divided; else package shares says when
	askSpread  = 250 * time.Millisecond // at random after a lease is due: else replicas that ask in turn get what flows in between
	askTimeout = 500 * time.Millisecond // of the store, so that a bucket does not stand still
	blanketTTL = 15                     // seconds, three reports, of an answer that allows or denies everything
	delivery   = 10 * time.Second       // after which the connection of a client that does not acknowledge is closed, see package netlimit
	spread     = 3                      // seconds over which the ends of the assignments of a lost stream are spread, in fast mode
)

// holder is a client that has reported the bucket.
type holder struct {
	stream  *stream
	bucket  *bucket // nil if it is told once to forget one that is not served
	id      *rlqspb.BucketId
	due     bool              // it has reported since it was last told to allow or deny everything
	busy    bool              // its last report had requests
	heard   time.Time         // its last report
	pending shares.Usage      // what it reported while nothing was decided
	said    shares.Assignment // what it is told next, or was last
	queued  bool              // it waits in the queue of its stream
}

// bucket is one limit, and the clients that share it. What can change is guarded by the service's lock.
type bucket struct {
	service *Service
	domain  string
	key     string
	id      *rlqspb.BucketId
	entries []descriptors.Entry
	payer   *address      // the first client's
	wake    chan struct{} // something was reported

	known     bool          // the limiter has said what is in force
	kind      shares.Kind   // of that: TokenBucket if the limit is divided, Abandon if no rule with rlqs is about it any more
	sleeps    shares.Micros // run does nothing until then, if nothing is reported
	asked     time.Time     // when the limiter was last asked, where nothing is divided
	holders   map[*holder]bool
	config    shares.Config
	shares    *shares.Bucket // while the answer is divided
	counter   backend.Key    // which has the rows of the other replicas
	rule      string         // its path
	decided   Requests       // that clients have reported since the limiter was last asked
	weighs    string         // key of the metadata with a client's weight, or empty
	onFailure descriptors.OnFailure
}

func now() shares.Micros { return shares.Micros(time.Now().UnixMicro()) }

// run divides until no client is left.
func (b *bucket) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.service.stopped.Done():
			return
		}
		wait, done := b.step()
		if done {
			return
		}
		timer.Reset(wait)
	}
}

// step does what is due. It returns how long until something is, or that the bucket has ended, since it has no holders.
func (b *bucket) step() (wait time.Duration, done bool) {
	b.service.mu.Lock()
	defer b.service.mu.Unlock()
	if ask, due := b.ask(); due {
		n, rule := b.decided, b.rule
		b.decided = Requests{}
		b.service.mu.Unlock()
		if n != (Requests{}) {
			b.service.limiter.Decided(b.domain, rule, b.entries, n.Allowed, n.Denied)
		}
		l, err := b.lease(&ask)
		b.service.mu.Lock()
		if err != nil {
			b.failed(&l.Leased)
		} else {
			b.decide(&l)
		}
	}
	b.tell()
	if len(b.holders) == 0 && (b.shares == nil || len(b.shares.Holders()) == 0) {
		b.service.forget(b)
		return 0, true
	}
	if b.shares == nil {
		return time.Until(b.asked.Add(askEvery)), false
	}
	at := now()
	b.sleeps = min(b.shares.Next(), at+shares.Micros(askEvery.Microseconds())) // it may have nothing to do at all
	return time.Duration(b.sleeps-at) * time.Microsecond, false
}

// ask returns what to ask for, if it is time to ask. It has no row where nothing is divided.
func (b *bucket) ask() (ask shares.Ask, due bool) {
	if b.shares == nil {
		at := time.Now()
		if due = at.Sub(b.asked) >= askEvery; due {
			b.asked = at
		}
		return ask, due
	}
	at := now()
	if ask, due = b.shares.Ask(at); due && b.service.config.Shared {
		b.shares.Pause(at + shares.Micros((askEvery + rand.N(askSpread)).Microseconds()))
	}
	return ask, due
}

// lease is the answer of the limiter and of the other replicas.
type lease struct {
	limiter.Leased

	at   shares.Micros // when the limiter was asked
	rows []shares.Row
}

// lease asks the other replicas, and then the limiter. If only it answers, nothing is leased.
func (b *bucket) lease(ask *shares.Ask) (l lease, err error) {
	ctx, cancel := context.WithTimeout(b.service.stopped, askTimeout)
	defer cancel()
	var unheard error
	if ask.Row.Replica != "" && b.service.config.Rows != nil {
		if l.rows, unheard = b.service.config.Rows.Agree(ctx, base64.RawURLEncoding.EncodeToString(b.counter[:]), &ask.Row); unheard != nil {
			ask.Hits = 0
		}
	}
	l.at = now()
	l.Leased, err = b.service.limiter.Lease(ctx, b.domain, b.entries, ask.Hits)
	if err == nil && l.Divides() && !l.Shadow {
		err = unheard
	}
	return l, err
}

// decide takes on what is in force, and what was leased.
func (b *bucket) decide(l *lease) {
	if l.Effective.Rule != nil {
		b.rule = l.Effective.Rule.Path
	}
	switch {
	case l.Effective.Disposition == limiter.Blocked:
		b.blanket(shares.DenyAll)
	case l.Effective.Rule == nil || l.Effective.Rule.RLQS == nil:
		b.blanket(shares.Abandon)
	case !l.Divides() || l.Shadow:
		b.blanket(shares.AllowAll)
	case l.Effective.Divided().Hits == 0:
		b.blanket(shares.DenyAll)
	default:
		b.divide(l)
	}
}

// blanket makes everything that clients are told the same.
func (b *bucket) blanket(kind shares.Kind) {
	if !b.known || b.kind != kind {
		b.known, b.kind, b.shares = true, kind, nil
		for h := range b.holders {
			h.due, h.pending = true, shares.Usage{}
		}
	}
	b.asked = time.Now()
}

// divide passes on what was leased. If the limit is another one than before, it is divided again.
func (b *bucket) divide(l *lease) {
	limit, rule := l.Effective.Divided(), l.Effective.Rule
	b.weighs, b.onFailure, b.counter = rule.RLQS.WeightFrom, l.Effective.OnFailure, l.Key
	if c := b.configOf(limit, rule.RLQS); b.shares == nil || c != b.config {
		b.known, b.kind, b.config, b.shares = true, shares.TokenBucket, c, shares.New(c, now())
		for h := range b.holders {
			b.shares.Report(now(), h.client(), h.pending)
			h.pending = shares.Usage{}
		}
		return
	}
	a := shares.Answer{Granted: l.Granted, Left: l.Left, Rows: l.rows}
	if limit.Algorithm == engine.FixedWindow {
		a.Ends = l.at + shares.Micros(l.ResetAfter.Microseconds()) // asked before the store answered, so not after it ends there
	}
	b.shares.Answer(now(), a)
}

// configOf returns how a limit is divided. A sliding window refills as it slides, as a bucket does, and not all at once.
func (b *bucket) configOf(l *engine.Limit, q *descriptors.RLQS) shares.Config {
	c := shares.Config{
		Replica:  b.service.replica,
		Limit:    shares.Limit{Hits: l.Hits, Window: l.Window, Burst: l.Capacity()},
		Delivery: shares.Micros(delivery.Microseconds()),
		Spread:   crc32.ChecksumIEEE([]byte(b.key)) % spread,
	}
	if l.Algorithm == engine.FixedWindow {
		c.Limit = shares.Limit{Hits: l.Hits, Window: l.Window}
	}
	if q.Strict {
		c.Mode, c.Spread = shares.Strict, 0
	}
	return c
}

// failed says that the store has not answered. Shares stay in force for a while, and then the rule's on_failure does.
func (b *bucket) failed(l *limiter.Leased) {
	if b.shares != nil && b.shares.Failed(now()) {
		return
	}
	onFailure := b.onFailure
	if l.Effective.Rule != nil {
		onFailure = l.Effective.OnFailure
	}
	switch onFailure {
	case descriptors.FailAllow:
		b.tellAll(shares.AllowAll)
	case descriptors.FailDeny:
		b.tellAll(shares.DenyAll)
	case descriptors.FailDefault, descriptors.FailError, descriptors.FailLocal: // assignments run out
		if b.shares == nil { // what was in force, such as a control, is no longer
			b.known = false
		}
	}
}

// tell queues what clients are to be told now.
func (b *bucket) tell() {
	switch {
	case b.shares != nil:
		b.send(b.shares.Actions(now()))
	case b.known:
		b.tellAll(b.kind)
	}
}

// tellAll tells the same to all who have reported since they were told so. An Envoy with requests that forgets a bucket reports it again
// within milliseconds, so one that was told nothing is not told to: it does what its no_assignment_behavior says.
func (b *bucket) tellAll(kind shares.Kind) {
	for h := range b.holders {
		if h.due && (kind != shares.Abandon || !h.busy || h.said.TTL > 0) {
			h.due = false
			h.tell(shares.Assignment{Kind: kind, TTL: blanketTTL})
		}
	}
}

// send queues actions.
func (b *bucket) send(actions []shares.Action) {
	for i := range actions {
		if h, ok := actions[i].Tag.(*holder); ok && b.holders[h] { // else its stream has ended
			h.tell(actions[i].Assignment)
		}
	}
}

// tell queues what h is told, in the place of what waits to be told. A holder that is told to abandon the bucket is one no longer.
func (h *holder) tell(a shares.Assignment) {
	s := h.stream
	h.said = a
	if a.Kind == shares.Abandon && h.bucket != nil {
		h.part()
	}
	if h.queued {
		return
	}
	if len(s.queue) >= maxQueued {
		s.end(errSlow)
		return
	}
	h.queued = true
	s.queue = append(s.queue, h)
	poke(s.wake)
}

// client returns h as package shares knows it.
func (h *holder) client() shares.Client {
	return shares.Client{ID: h.stream.id, Weight: weight(h.stream.md, h.bucket.weighs), Tag: h}
}

// report takes a report of a client.
func (b *bucket) report(h *holder, u shares.Usage) {
	h.due, h.busy = true, u.Busy()
	b.decided.add(u)
	switch {
	case b.shares != nil:
		b.shares.Report(now(), h.client(), u)
		if b.shares.Next() >= b.sleeps { // most reports change nothing before the next division
			return
		}
	case !b.known:
		h.pending.Elapsed = u.Elapsed
		h.pending.Allowed += u.Allowed
		h.pending.Denied += u.Denied
	}
	poke(b.wake)
}

// leave says that the stream of a client has ended.
func (b *bucket) leave(h *holder) {
	delete(b.holders, h)
	if b.shares != nil {
		b.shares.Leave(now(), h.stream.id)
	}
	poke(b.wake)
}

// renew tells a client its assignment once more, or all clients if h is nil.
func (b *bucket) renew(h *holder) {
	id := ""
	if h != nil {
		id, h.due = h.stream.id, true
	} else {
		for h := range b.holders {
			h.due = true
		}
	}
	if b.shares != nil {
		b.send(b.shares.Renew(now(), id))
	} else {
		b.tell()
	}
}

// status returns the status of b, with so many holders.
func (b *bucket) status(most int) BucketStatus {
	out := BucketStatus{Domain: b.domain, Entries: b.entries, Answer: "undecided"}
	if b.known {
		out.Answer = b.kind.String()
	}
	if b.shares == nil {
		return out
	}
	out.Answer = "divided"
	out.Shares, out.Strict = b.shares.Status(), b.config.Mode == shares.Strict
	out.Rate = float64(b.config.Limit.Hits) / (time.Duration(b.config.Limit.Window) * time.Microsecond).Seconds()
	out.Holders = b.shares.Holders()
	out.TotalHolders = len(out.Holders)
	for i := range out.Holders {
		out.Assigned += out.Holders[i].Share
	}
	out.Holders = out.Holders[:min(most, len(out.Holders))]
	return out
}
