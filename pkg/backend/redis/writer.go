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

// writer sends batches over one connection. Whenever it is free it sends everything in the queue: an idle server adds
// no delay, and a busy one shares system calls.
type writer struct {
	node    *node
	rank    int32     // its number among those of the node
	cond    sync.Cond // where it waits, with the mutex of the node
	idle    bool      // it waits, and has not been woken to send something; guarded by that mutex
	link    *link
	renewed int64 // of node, when link was opened
	backoff remote.Backoff
	heard   time.Time // when the last batch or ping ended
	sentAt  time.Time // when the last batch was cut
	watches bool      // this is the one of the node's writers that looks for evictions
	looked  time.Time // when it last did
	evicted int64     // the count it saw then

	unsure bool      // a reply said that the user may not do something, or that the server does not
	tried  time.Time // when it was last tried whether it does

	mu     sync.Mutex // held while flight changes, and while callers that wait for it are woken
	flight []*item    // items, from when they have left the queue until they are answered

	items  []*item
	onWay  int     // operations that were on their way to the node when items were cut, with these
	full   bool    // others had to be left
	weight int64   // of heads that are not light, in µs
	heads  []*item // the first items of commands
	calls  calls
	keys   map[backend.Key]*item // the last head of each key in the batch
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
			w.node.lookAgain() // what woke this writer may be for another one to handle
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

// join opens a connection: for a writer that only a node that is far away needs, once there is a batch for it.
func (w *writer) join(ctx context.Context, tick *int) (connected bool) {
	if w.further() {
		if work, _ := w.node.await(w, tick); !work {
			return false
		}
	}
	return w.connect(ctx)
}

// further reports whether only a node that is far away needs w. Its connection is opened once there is a batch for it.
func (w *writer) further() bool { return w.rank >= nearWriters }

// lookEach is how often a node is asked how many keys it has evicted.
const lookEach = 5 * time.Second

// look asks how many keys the node has evicted, and reports how many more that is than last time.
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

// count asks how many keys the node has evicted, and what its policy is. The number stays if we have no permission to ask, or the server does
// not say.
func (w *writer) count(ctx context.Context, l *link) error {
	w.looked = time.Now()
	info, memory := newCommand("info", "stats"), newCommand("info", "memory") //nolint:contextcheck // go-redis keeps it, and does not look at it
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

// ready reports whether w has a connection that is fit for a batch, and closes one that is not.
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

// hangUp closes the connection of w, if it has one.
func (w *writer) hangUp() {
	if w.link == nil {
		return
	}
	w.link.close()
	w.link = nil
	w.node.links.Add(-1)
	w.node.pool.connected(-1)
}

// connect opens a connection. If it fails it waits before it returns, longer each time.
func (w *writer) connect(ctx context.Context) bool {
	err := w.open(ctx)
	if err == nil || ctx.Err() != nil {
		return err == nil
	}
	n := w.node
	err = n.pool.advised(err)
	err.Unsent = true
	n.tick() // connections that are not in use may not work either
	if !n.connected() {
		n.breaker.Disconnected(err)
		if n.connected() { // another writer was quicker
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

// open opens a connection, once.
func (w *writer) open(ctx context.Context) *remote.Error {
	n := w.node
	renewed := n.renewed.Load()
	l, e := n.open(ctx)
	if e != nil {
		return e
	}
	first, cancel := context.WithTimeout(ctx, n.pool.config.DialTimeout)
	err := n.identify(first, l)
	if err == nil && w.watches && w.looked.IsZero() && l.server.version != "" { // what was evicted before this process came is not news
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

// checkIdentity reports if the process at the other end is not the one that was there before, or may evict counters.
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

// pingAfter is how long a connection may be idle before it is checked.
const pingAfter = time.Second

// ping finds out whether an idle connection still works.
func (w *writer) ping(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.node.pool.opTimeout())
	defer cancel()
	err := w.exec(ctx, nil, true)
	w.heard = time.Now()
	if err != nil {
		w.hangUp()
	}
}

// exec sends commands over w's connection, with a fence or without, and notes whether the node answers.
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

// wake has those who wait for what has been sent look whether there is still something to wait for.
func (w *writer) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, it := range w.flight {
		it.waiter.wake()
	}
}

// fail answers the items of the batch, none of which has been sent.
func (w *writer) fail(e *remote.Error) {
	w.complete()
	for _, it := range w.items {
		it.failAll(e)
	}
}

// batch sends what is queued, and answers it.
func (w *writer) batch(ctx context.Context) {
	n := w.node
	runtime.Gosched() // let callers that are ready queue first: costs nothing if there are none, and makes batches a third longer
	now := time.Now()
	w.sentAt = now
	w.cut()
	if len(w.items) == 0 {
		return
	}
	if n.breaker.Silent() { // since they were queued
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
	if slices.ContainsFunc(w.heads, func(it *item) bool { return it.err == nil }) { // a proxy may fail before it has asked
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

// patience is how long a batch may take if a caller in it has no other way to get an answer, and there is no [Config.OpTimeout].
const patience = time.Second

// longest returns how long the batch may take.
func (w *writer) longest() time.Duration {
	p := w.node.pool
	if p.config.OpTimeout == 0 && slices.ContainsFunc(w.items, func(it *item) bool { return it.op.Wait == backend.WaitFull }) {
		return patience
	}
	return p.opTimeout()
}

// slow reports whether more than half of a batch's callers had to give up on it.
func (w *writer) slow(took time.Duration) bool {
	late := 0
	for _, it := range w.items {
		if it.waiter.left.Load() && remote.TooSlow(took, it.waiter.budget) {
			late++
		}
	}
	return 2*late > len(w.items)
}

// merge finds the heads among the items, merges others into them, and returns how many operations there are. Only the last head of a key
// takes further operations on it, so that operations on one key stay in order. An operation that follows another one of its own call
// is not merged, because the caller could tell: the times in the answer to a merged take are those after all of it.
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
			if own := weight(&it.op); own > weightWindow { // what others take the node has shown
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

// answer answers all items of the batch, which must not be used afterwards.
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
