package redis

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// writer sends batches over one connection. Whenever it is free, it sends the whole queue. So an idle server adds no delay, and a busy
// one shares system calls.
type writer struct {
	node    *node
	rank    int32     // number among the node's writers
	cond    sync.Cond // for waiting, with the mutex of the node
	idle    bool      // waits, and has not been woken up to send; guarded by that mutex
	link    *link
	renewed int64 // value of node.renewed when link was opened
	backoff remote.Backoff
	heard   time.Time // time of the last answer to a batch or ping
	sentAt  time.Time // time when the last batch was cut
	watches bool      // the one writer of the node that checks for evictions
	looked  time.Time // time of its last check
	evicted int64     // count at that check

	unsure bool      // a reply suggested a missing permission or command; try must test
	tried  time.Time // time of the last test

	mu     sync.Mutex // held while flight changes, and while its waiting callers are woken up
	flight []*item    // items that have left the queue and are not answered

	items  []*item
	onWay  int     // operations in progress when items were cut, including these
	full   bool    // others remained in the queue
	weight int64   // cost of the heads, except cheap ones, in µs
	heads  []*item // first items of commands
	calls  calls
	keys   map[backend.Key]*item // last head of each key in the batch
	cmds   []redis.Cmder
}

// serve sends batches until ctx ends.
func (w *writer) serve(ctx context.Context) {
	defer w.hangUp()
	defer w.sendLastExpires(context.WithoutCancel(ctx))
	tick := 0
	for ctx.Err() == nil {
		if w.link == nil && !w.join(ctx, &tick) {
			continue
		}
		if time.Now().After(w.link.ends) {
			w.renew(ctx)
		}
		if w.sendExpires(context.WithoutCancel(ctx)); w.link == nil {
			continue
		}
		work, stopped := w.node.await(w, &tick)
		switch {
		case stopped:
			return
		case !w.ready():
			w.node.lookAgain() // another writer may have to handle the wakeup
		case work:
			w.batch(ctx)
		case w.further() && time.Since(w.sentAt) > unusedFor:
			w.hangUp()
		case w.node.breaker.Silent(), !w.node.breaker.Open() && time.Since(w.heard) > pingAfter:
			w.ping(ctx)
		}
		if w.link != nil && w.unsure && time.Since(w.tried) > tryEach {
			w.try(ctx)
		}
		if w.watches && w.link != nil && w.link.server.version != "" && time.Since(w.looked) > lookEach {
			w.look(ctx)
		}
	}
}

// join opens a connection. A further writer first waits for a batch.
func (w *writer) join(ctx context.Context, tick *int) (connected bool) {
	if w.further() {
		if work, _ := w.node.await(w, tick); !work {
			return false
		}
	}
	return w.connect(ctx)
}

// further reports whether only a distant node needs w. Its connection is opened at the first batch.
func (w *writer) further() bool { return w.rank >= nearWriters }

// lookEach is the interval of queries for the number of evicted keys.
const lookEach = 5 * time.Second

// look queries the number of evicted keys of the node, and reports the increase.
func (w *writer) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.node.pool.opTimeout())
	defer cancel()
	before := w.evicted
	if err := w.count(ctx, w.link); err != nil {
		w.hangUp()
		return
	}
	if w.evicted < before { // the server was restarted
		before = 0
	}
	if w.evicted > before {
		w.node.pool.config.Evicted(w.node.addr, w.evicted-before)
	}
}

// count queries the number of evicted keys of the node and its maxmemory-policy. The number is unchanged if the user lacks the permission
// or the server does not report it.
func (w *writer) count(ctx context.Context, l *link) error {
	w.looked = time.Now()
	info, memory := newCommand("info", "stats"), newCommand("info", "memory") //nolint:contextcheck // go-redis stores the context, but does not use it
	if err := l.exec(ctx, []redis.Cmder{info, memory}); err != nil {
		return err
	}
	text, _ := memory.Val().(string)
	w.node.pool.config.Policy(w.node.addr, infoField(text, "maxmemory_policy"))
	text, _ = info.Val().(string)
	if n, err := strconv.ParseInt(infoField(text, "evicted_keys"), 10, 64); err == nil {
		w.evicted = n
	}
	return nil
}

// ready reports whether w has a usable connection. It closes an unusable one.
func (w *writer) ready() bool {
	if w.link == nil {
		return false
	}
	if w.renewed == w.node.renewed.Load() && remote.Alive(w.link.net) == nil {
		return true
	}
	w.hangUp()
	return false
}

// hangUp closes the connection of w, if any.
func (w *writer) hangUp() {
	if w.link == nil {
		return
	}
	w.link.close()
	w.link = nil
	w.node.links.Add(-1)
	w.node.pool.connected(-1)
}

// connect opens a connection. After a failure it waits before it returns, longer each time.
func (w *writer) connect(ctx context.Context) bool {
	err := w.open(ctx)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	n := w.node
	err = n.pool.advised(err)
	err.Unsent = true
	n.tick() // idle connections may not work either
	if !n.connected() {
		n.breaker.Disconnected(err)
		if n.connected() { // another writer was faster
			n.breaker.Connected()
		} else {
			n.fail(err)
		}
	}
	n.pool.observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: n.addr, Err: err})
	timer := time.NewTimer(w.backoff.Next())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.again:
	case <-ctx.Done():
	}
	return false
}

// open makes one attempt to open a connection.
func (w *writer) open(ctx context.Context) *remote.Error {
	n := w.node
	renewed := n.renewed.Load()
	l, e := n.open(ctx)
	if e != nil {
		return e
	}
	first, cancel := context.WithTimeout(ctx, n.pool.config.DialTimeout)
	err := n.identify(first, l)
	if err == nil && w.watches && w.looked.IsZero() && l.server.version != "" { // earlier evictions are not reported
		err = w.count(first, l)
	}
	cancel()
	if err != nil {
		l.close()
		return classify(l.addr, err)
	}
	w.link, w.renewed = l, renewed
	n.breaker.Received()
	w.backoff.Reset()
	n.links.Add(1)
	n.breaker.Connected()
	n.checkIdentity(l.addr, &l.server)
	w.tried, w.unsure = time.Now(), false
	n.pool.connected(+1)
	n.pool.observer.Event(remote.Event{Kind: remote.EventConnected, Node: l.addr, Detail: l.server.version})
	return nil
}

// checkIdentity reports that the node is another process than before, or that it may evict counters.
func (n *node) checkIdentity(addr string, s *server) {
	if s.run != "" {
		before := n.run.Swap(&s.run)
		if before != nil && *before != s.run {
			n.apart.Store(false)
			n.pace.Reset()
			n.pool.observer.Event(remote.Event{Kind: EventDataChanged, Node: addr, Detail: s.run})
		}
	}
	n.pool.config.Policy(n.addr, s.policy)
	switch s.policy {
	case "", "noeviction", "volatile-ttl":
	default:
		n.pool.observer.Event(remote.Event{Kind: EventMaxMemory, Node: addr, Detail: s.policy})
	}
}

// pingAfter is the idle time after which a connection is checked.
const pingAfter = time.Second

// ping tests an idle connection.
func (w *writer) ping(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.node.pool.opTimeout())
	defer cancel()
	err := w.exec(ctx, nil, true)
	w.heard = time.Now()
	if err != nil {
		w.hangUp()
	}
}

// exec sends commands over w's connection, with or without a fence, and informs the breaker.
func (w *writer) exec(ctx context.Context, commands []redis.Cmder, fenced bool) error {
	s := w.node.breaker
	s.Sent()
	var err error
	if fenced {
		err = w.link.exec(ctx, commands)
	} else {
		err = w.link.send(ctx, commands)
	}
	switch {
	case err == nil:
		s.Received()
	case classify("", err).Class == remote.Reset:
		s.Forget()
	}
	return err
}

// cut takes items from the queue.
func (w *writer) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.items, w.onWay, w.full = w.node.cut(w.items[:0])
	w.flight = w.items
}

// complete must be called before the items are answered.
func (w *writer) complete() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flight = nil
	n := 0
	for _, it := range w.items {
		n += it.chained()
	}
	if n > 0 {
		w.node.completed(n, w.weight)
		w.weight = 0
	}
}

// wake makes the callers of sent items check whether waiting is still useful.
func (w *writer) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range w.flight {
		it.waiter.wake()
	}
}

// fail fails the items of the batch, none of which has been sent.
func (w *writer) fail(e *remote.Error) {
	w.complete()
	for _, it := range w.items {
		it.failAll(e)
	}
}

// batch sends the queue as a batch and completes it.
func (w *writer) batch(ctx context.Context) {
	n := w.node
	runtime.Gosched() // lets runnable callers queue first; costs nothing if there are none, and makes batches a third longer
	now := time.Now()
	w.sentAt = now
	w.cut()
	if len(w.items) == 0 {
		return
	}
	if n.breaker.Silent() { // silent since they were queued
		w.fail(n.breaker.Mute())
		return
	}
	done, unsent := n.breaker.Begin()
	if unsent != nil {
		w.fail(unsent)
		return
	}
	ops := w.merge()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), now.Add(w.longest()))
	worst := w.ask(ctx)
	cancel()
	w.heard = time.Now()
	took := w.heard.Sub(now)
	if slices.ContainsFunc(w.heads, func(it *item) bool { return it.err == nil }) { // a proxy may fail without asking the server
		n.pace.Done(now, w.heard, w.onWay, w.full)
	}
	w.unsure = w.unsure || worst != nil && (worst.Class == ClassNoAuth || worst.Class == remote.Other)
	verdict := worst
	if verdict == nil && w.slow(took) {
		verdict = store.Slow(n.addr)
	}
	if verdict != nil && !trips(verdict) {
		verdict = nil
	}
	done(verdict)
	if verdict != nil && n.breaker.Open() {
		n.fail(verdict.KeptAway())
	}
	if worst != nil {
		worst = n.pool.advised(worst)
	}
	report := remote.Batch{Node: n.addr, Ops: ops, Merged: ops - len(w.heads), Duration: took, Err: worst}
	for _, it := range w.heads {
		if it.err != nil {
			report.Failed += it.items
		}
	}
	w.complete()
	w.answer()
	n.pool.observer.Batch(report)
}

// patience is the maximum duration of a batch if a caller in it has no fallback, and without [Config.OpTimeout].
const patience = time.Second

// longest returns the maximum duration of the batch.
func (w *writer) longest() time.Duration {
	p := w.node.pool
	if p.config.OpTimeout == 0 && slices.ContainsFunc(w.items, func(it *item) bool { return it.op.Wait == backend.WaitFull }) {
		return patience
	}
	return p.opTimeout()
}

// slow reports whether more than half of a batch's callers gave up on it.
func (w *writer) slow(took time.Duration) bool {
	late := 0
	for _, it := range w.items {
		if it.waiter.left.Load() && remote.TooSlow(took, it.waiter.budget) {
			late++
		}
	}
	return 2*late > len(w.items)
}

// merge determines the heads among the items, merges other items into them, and returns the number of operations. Only the last head of a
// key accepts further operations, so that operations on one key stay in order. An operation that follows another one of the same call is
// not merged, because the caller could notice: the times in the decision on a merged take are those after the whole take.
func (w *writer) merge() (ops int) {
	clear(w.keys)
	w.heads = w.heads[:0]
	for _, it := range w.items {
		for first := it; it != nil; it = it.follow {
			ops++
			it.merged = nil
			before := w.keys[it.op.Key]
			if before != nil && it == first && sameTake(&before.op, &it.op) {
				before.join(it)
				continue
			}
			it.head = head{last: it, items: 1, after: before}
			w.heads = append(w.heads, it)
			w.keys[it.op.Key] = it
			if own := weight(&it.op); own > weightWindow { // node.pace covers cheaper ones
				w.weight += int64(own)
			}
		}
	}
	w.node.weight.Add(w.weight)
	return ops
}

// join merges other into the command of it.
func (it *item) join(other *item) {
	it.last.merged, it.last = other, other
	it.items++
	if spends(&it.op) {
		it.op.Take.Count += other.op.Take.Count
	}
}

// answer completes all items of the batch, which must not be used afterwards.
func (w *writer) answer() {
	for _, first := range w.heads {
		if first.err == nil && first.items > 1 && spends(&first.op) {
			split(first)
			continue
		}
		e, d := first.err, first.op.Decision
		for it := first; it != nil; {
			next := it.merged
			if e != nil {
				it.fail(e)
			} else {
				it.op.Decision = d
				it.answer()
			}
			it = next
		}
	}
	clear(w.heads)
	clear(w.keys)
}
