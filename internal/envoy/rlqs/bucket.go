package rlqs

import (
	"context"
	"encoding/base64"
	"hash/crc32"
	"math/rand/v2"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Times of a bucket.
const (
	askEvery        = time.Second            // interval of questions; see package shares
	askSpread       = 250 * time.Millisecond // random delay of a due lease: otherwise replicas that ask in turn get the inflow in between
	askTimeout      = 500 * time.Millisecond // of the store, so that a bucket does not stall
	idleEvery       = 10 * time.Second       // interval of questions of a bucket without clients and other replicas
	followed        = 15 * time.Second       // lifetime of a bucket without clients after an RLS call
	farewellTimeout = 2 * time.Second        // for sending the last row
	delivery        = 10 * time.Second       // after which the connection of a client that does not acknowledge closes; see package netlimit
	spread          = 3                      // seconds over which the assignments of a lost stream expire, in fast mode
)

// holder is a client that has reported the bucket.
type holder struct {
	stream     *stream
	bucket     *bucket // nil if the holder only exists to abandon an unserved bucket once
	id         *rlqspb.BucketId
	lastReport time.Time         // time of its last report
	latest     shares.Assignment // its latest assignment, sent or queued
	queued     bool              // it is in the queue of its stream
}

// bucket is one limit and the clients that share it. The service's lock guards its mutable fields.
type bucket struct {
	service *Service
	domain  string
	key     string
	id      *rlqspb.BucketId
	entries []descriptors.Entry
	payer   *address      // address of the first client
	wake    chan struct{} // signals a report

	sleeps    shares.Micros // run has nothing to do until then, unless there is a report
	holders   map[*holder]bool
	shares    *shares.Bucket
	counter   backend.Key // counter in use; its key names the table of the replicas' rows
	window    int64       // window of the last lease
	rule      string      // path of the rule
	decided   Requests    // reported by clients since the last question to the limiter
	weighs    string      // key of the metadata with a client's weight, or empty
	onFailure descriptors.OnFailure
	called    time.Time // time of the last known RLS call; keeps the bucket for a while without clients
}

// now returns the time in microseconds since the epoch.
func now() shares.Micros { return shares.Micros(time.Now().UnixMicro()) }

// run divides the limit until no client is left.
func (b *bucket) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-b.wake:
		case <-b.service.stopped.Done():
			b.farewell()
			return
		}
		wait, done := b.step()
		if done {
			return
		}
		timer.Reset(wait)
	}
}

// step does the work that is due. It returns the time until the next step; done is true if the bucket has ended for lack of holders.
func (b *bucket) step() (wait time.Duration, done bool) {
	b.service.mu.Lock()
	defer b.service.mu.Unlock()
	if ask, due := b.ask(); due {
		n, rule := b.decided, b.rule
		b.decided = Requests{}
		b.service.mu.Unlock()
		if n != (Requests{}) && b.service.config.Decided != nil {
			b.service.config.Decided(b.domain, rule, b.entries, n.Allowed, n.Denied)
		}
		l, err := b.lease(&ask)
		b.service.mu.Lock()
		switch {
		case b.service.drained: // clients have their final assignments
		case err != nil:
			b.failed(&l.Leased)
		default:
			b.decide(&l)
		}
	}
	b.send(b.shares.Actions(now()))
	if len(b.holders) == 0 && len(b.shares.Holders()) == 0 && time.Since(b.called) > followed {
		b.service.forget(b)
		b.service.limiter.EndLease(b.counter)
		return 0, true
	}
	at := now()
	b.sleeps = min(b.shares.Next(), at+shares.Micros(askEvery.Microseconds())) // it may have no work at all
	return time.Duration(b.sleeps-at) * time.Microsecond, false
}

// farewell notifies the other replicas that this replica's clients are about to report to them.
func (b *bucket) farewell() {
	b.service.mu.Lock()
	row, divided := b.shares.Farewell(now())
	b.service.mu.Unlock()
	if !divided {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
	defer cancel()
	_, _ = b.service.config.Rows.Agree(ctx, b.rows(), &row) // without this, they detect it after a few seconds
}

// rows returns the name of the table with the replicas' rows.
func (b *bucket) rows() string { return base64.RawURLEncoding.EncodeToString(b.counter[:]) }

// ask returns the next question if one is due.
func (b *bucket) ask() (ask shares.Request, due bool) {
	at := now()
	ask, due = b.shares.Request(at)
	if due && b.service.config.Shared && b.shares.Limit.Window >= shares.Micros(2*askEvery.Microseconds()) {
		b.shares.Pause(at + shares.Micros((askEvery + rand.N(askSpread)).Microseconds()))
	}
	return ask, due
}

// lease is the answer of the limiter and of the other replicas.
type lease struct {
	limiter.Leased

	at   shares.Micros // time of the question to the limiter
	rows []shares.Row
}

// lease asks the other replicas and then the limiter. If the replicas do not answer, it leases nothing.
func (b *bucket) lease(ask *shares.Request) (l lease, err error) {
	ctx, cancel := context.WithTimeout(b.service.stopped, askTimeout)
	defer cancel()
	var unheard error
	want := limiter.Lease{Hits: ask.Hits, Refund: ask.Return, Overdraw: b.shares.Limit.Overdraft, Window: b.window}
	if ask.Row.Replica != "" {
		if l.rows, unheard = b.service.config.Rows.Agree(ctx, b.rows(), &ask.Row); unheard != nil {
			want.Hits, want.Refund = 0, 0
		}
	}
	l.at = now()
	l.Leased, err = b.service.limiter.Lease(ctx, b.domain, b.entries, want)
	if err == nil && l.Divides() && !l.Shadow {
		err = unheard
	}
	return l, err
}

// decide applies the limits in force and the leased hits.
func (b *bucket) decide(l *lease) {
	if l.Effective.Rule != nil {
		b.rule = l.Effective.Rule.Path
	}
	switch rule, outcome := l.Effective.Rule, l.Effective.Outcome; {
	case outcome == limiter.Blocked:
		b.shares.Rule(shares.DenyAll, now())
	case outcome == limiter.Allowed, outcome == limiter.Unlimited:
		b.shares.Rule(shares.AllowAll, now())
	case rule == nil || rule.RLQS == nil:
		b.shares.Rule(shares.Abandon, now())
	case !l.Divides() || l.Shadow:
		b.shares.Rule(shares.AllowAll, now())
	case l.Effective.Divided().Hits == 0:
		b.shares.Rule(shares.DenyAll, now())
	default:
		b.divide(l)
	}
}

// divide passes on the leased hits. If the limit has changed, it starts a new division.
func (b *bucket) divide(l *lease) {
	limit, rule := l.Effective.Divided(), l.Effective.Rule
	if l.Key != b.counter {
		b.service.limiter.EndLease(b.counter)
	}
	b.weighs, b.onFailure, b.counter, b.window = rule.RLQS.WeightFrom, l.Effective.OnFailure, l.Key, l.Window
	if c := b.configOf(limit, rule.RLQS); c != b.shares.Config || !b.shares.Divides() {
		b.shares.Become(c, now())
		return
	}
	a := shares.Answer{Granted: l.Granted, Left: l.Left, Requested: l.Requested, Rows: l.rows}
	if b.shares.Limit.Burst == 0 {
		a.Ends = l.at + shares.Micros(l.ResetAfter.Microseconds()) // l.at precedes the store's answer, so this is not too late
	}
	b.shares.Answer(now(), a)
	if l.Requested > 0 && !b.called.IsZero() {
		b.called = time.Now()
	}
	if b.shares.Idle() {
		b.shares.Pause(now() + shares.Micros(idleEvery.Microseconds()))
	}
}

// configOf returns the configuration for dividing a limit. A limit that refills with time is a bucket. So is a window too short for
// strict mode, such as one set by a control.
func (b *bucket) configOf(l *engine.Limit, q *descriptors.RLQS) shares.Config {
	c := shares.Config{
		Limit:    shares.Limit{Hits: l.Hits, Window: l.Window, Burst: l.Capacity()},
		Delivery: shares.Micros(delivery.Microseconds()),
	}
	if b.service.config.Rows != nil {
		c.Replica = b.service.replica
	}
	if l.Algorithm == engine.FixedWindow {
		c.Limit.Burst = 0
	}
	if q.Strict && c.Limit.Keepable() {
		c.Mode = shares.Strict
		return c
	}
	c.Limit.Burst, c.Limit.Overdraft = l.Capacity(), l.Algorithm.Family() == engine.FamilyBucket
	c.Spread = crc32.ChecksumIEEE([]byte(b.key)) % spread
	return c
}

// failed records that the store did not answer. Shares stay in force for a while, then the rule's on_failure applies.
func (b *bucket) failed(l *limiter.Leased) {
	if l.Effective.Rule != nil {
		b.onFailure = l.Effective.OnFailure
	}
	b.shares.Failed(now(), fallback(b.onFailure))
}

// fallback returns the fallback of clients for on_failure, used after shares are no longer renewed.
func fallback(f descriptors.OnFailure) shares.Fallback {
	switch f {
	case descriptors.FailAllow:
		return shares.Allow
	case descriptors.FailDeny:
		return shares.Deny
	case descriptors.FailLocal:
		return shares.Keep
	case descriptors.FailDefault, descriptors.FailError:
	}
	return shares.Lapse
}

// send queues actions.
func (b *bucket) send(actions []shares.Action) {
	for i := range actions {
		if h, ok := actions[i].Tag.(*holder); ok && b.holders[h] { // otherwise its stream has ended
			h.tell(actions[i].Assignment)
		}
	}
}

// tell queues an assignment for h, in place of one already in the queue. If it abandons the bucket, h is no longer a holder.
func (h *holder) tell(a shares.Assignment) {
	s := h.stream
	h.latest = a
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

// client returns h as a shares.Client.
func (h *holder) client() shares.Client {
	return shares.Client{ID: h.stream.id, Weight: weight(h.stream.md, h.bucket.weighs), Tag: h}
}

// report processes a report of a client.
func (b *bucket) report(h *holder, u shares.Usage) {
	b.decided.add(u)
	b.shares.Report(now(), h.client(), u)
	if b.shares.Next() < b.sleeps { // most reports change nothing before the next division
		poke(b.wake)
	}
}

// leave removes a client whose stream has ended.
func (b *bucket) leave(h *holder) {
	delete(b.holders, h)
	b.shares.Leave(now(), h.stream.id)
	poke(b.wake)
}

// status returns the status of b with at most most holders.
func (b *bucket) status(most int) BucketStatus {
	limit := &b.shares.Limit
	out := BucketStatus{
		Domain: b.domain, Entries: b.entries, Shares: b.shares.Status(), Strict: b.shares.Mode == shares.Strict, Holders: b.shares.Holders(),
	}
	if !b.shares.Divides() {
		out.Holders = nil
		return out
	}
	out.Rate = float64(limit.Hits) / (time.Duration(limit.Window) * time.Microsecond).Seconds()
	out.TotalHolders = len(out.Holders)
	for i := range out.Holders {
		out.Assigned += out.Holders[i].Share
	}
	out.Holders = out.Holders[:min(most, len(out.Holders))]
	return out
}
