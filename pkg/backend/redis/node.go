package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Bounds on waiting operations and on writers.
const (
	maxCalls    = 16_384                 // calls in progress; more fail immediately
	manyCalls   = 1024                   // calls in progress; more fail immediately if the node is quiet
	maxCommands = 128                    // in a batch; like maxWeight, exceeded only by the operations of its last call on one key
	nearWriters = 2                      // of a nearby node; a distant node may have up to Config.PoolSize
	maxWriters  = 16                     // of any node
	farAway     = 3 * time.Millisecond   // round-trip time from which two batches in progress would leave a node idle most of the time
	lateAfter   = time.Millisecond       // age of a batch after which a smaller one may follow it
	unusedFor   = 10 * time.Second       // time without a batch after which a further writer closes its connection
	quietFor    = 500 * time.Millisecond // time without an answer after which a node is quiet
)

// node is one server, with a queue and the writers that send from it.
type node struct {
	pool    *pool
	addr    string
	resolve func(context.Context) ([]string, error) // possible addresses, likeliest first
	breaker *remote.Breaker
	writers []*writer
	most    int32 // number of writers

	links    atomic.Int32 // open connections
	renewed  atomic.Int64 // number of times that all connections had to be renewed
	renewing atomic.Bool  // a writer is replacing a connection that still works
	alone    atomic.Bool  // it is known to be one server, so a call may have any keys
	apart    atomic.Bool  // its process has rejected a call with several keys
	run      atomic.Pointer[string]
	end      context.CancelFunc // stops the writers, for a node of a cluster
	again    chan struct{}      // makes writers reconnect without waiting further

	pace   remote.Pace
	sent   atomic.Int64 // operations taken from the queue and not answered
	flying atomic.Int32 // batches of these operations
	weight atomic.Int64 // cost of these operations, except cheap ones, in µs

	mu      sync.Mutex
	queue   queue
	cutAt   time.Time   // time when a writer last took from the queue
	look    *time.Timer // makes a writer check whether a batch is due
	looks   bool        // look is running
	ticks   int
	stopped bool
}

func (p *pool) newNode(addr string, resolve func(context.Context) ([]string, error)) *node {
	n := &node{pool: p, addr: addr, resolve: resolve, again: make(chan struct{}, maxWriters)}
	n.look = time.AfterFunc(time.Hour, n.lookAgain)
	n.look.Stop()
	n.most = int32(min(maxWriters, p.config.PoolSize)) //nolint:gosec // a few
	for i := range n.most {
		w := &writer{node: n, rank: i, keys: map[backend.Key]*item{}, watches: i == 0}
		w.cond.L = &n.mu
		n.writers = append(n.writers, w)
	}
	n.breaker = remote.NewBreaker(store, addr, remote.BreakerConfig{
		OpTimeout: p.config.OpTimeout, AtOnce: ClassBusy, Changed: p.observer.Breaker, Silenced: n.silenced,
	})
	return n
}

// at returns a resolve function for a fixed address.
func at(addr string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return []string{addr}, nil }
}

// open opens a connection to the current address of n.
func (n *node) open(ctx context.Context) (*link, *remote.Error) {
	addrs, err := n.resolve(ctx)
	if err != nil {
		return nil, classify(n.addr, err)
	}
	var first *remote.Error
	for _, addr := range addrs {
		l, err := n.pool.open(ctx, addr)
		if err == nil {
			if s := n.pool.sentinels; s != nil {
				s.found(addr)
			}
			return l, nil
		}
		if first == nil {
			first = classify(addr, err)
		}
	}
	return nil, first
}

// admit returns nil if n accepts operations, and otherwise the reason. A probe may remain unanswered.
func (n *node) admit(now time.Time, budget time.Duration) (probing bool, unsent *remote.Error) {
	probing = n.breaker.Open()
	unsent = n.breaker.Admit(now, budget)
	return probing && unsent == nil, unsent
}

// silenced is called when n has become silent. It fails everything in the queue, and wakes up callers whose operations have been sent.
func (n *node) silenced() {
	n.fail(n.breaker.Mute())
	for _, w := range n.writers {
		w.wake()
	}
}

// push queues an item, the index-th operation of its call, and wakes up an idle writer. It returns an error if the writers have been
// stopped or n is silent.
func (n *node) push(it *item, index int) *remote.Error {
	n.mu.Lock()
	switch {
	case n.stopped:
		n.mu.Unlock()
		return errStopped
	case n.breaker.Silent(): // silent since the item was admitted
		n.mu.Unlock()
		return n.breaker.Mute()
	}
	n.queue.push(it, index)
	n.wakeIfDue()
	n.mu.Unlock()
	return nil
}

// due reports whether a writer should send the queue. While another batch is unanswered, the queue must be as long as the operations in
// progress, or the last batch must be lateAfter old: two batches of equal size delay callers less than a large one followed by the rest.
// If neither holds, due schedules another check. Writers beyond nearWriters also need room. n.mu must be held.
func (n *node) due() bool {
	queued, sent := n.queue.length.Load(), n.sent.Load()
	switch {
	case queued == 0 || !n.room():
		return false
	case queued >= min(sent, maxCommands):
		return true
	}
	left := lateAfter - time.Since(n.cutAt)
	if left > 0 && !n.looks {
		n.looks = true
		n.look.Reset(left)
	}
	return left <= 0
}

// room reports whether another batch may be sent before the next answer: always for nearWriters batches, and for more if the node is
// distant and will finish the operations in progress sooner than their answers can arrive.
func (n *node) room() bool {
	flying := n.flying.Load()
	if flying < min(nearWriters, n.most) {
		return true
	}
	weighs := time.Duration(n.weight.Load()) * time.Microsecond
	pace := n.pace.Estimate()
	return flying < n.usable() && max(pace.Of(int(n.sent.Load())), weighs) < pace.Way()
}

// usable returns the number of writers that may send: for a distant node, one for each lateAfter of the round-trip time, because that
// many batches are sent before the first answer.
func (n *node) usable() int32 {
	if way := n.pace.Estimate().Way(); way >= farAway {
		return int32(min(way/lateAfter, time.Duration(n.most)))
	}
	return min(nearWriters, n.most)
}

// wakeIfDue wakes up an idle writer if a batch is due. It selects the usable writer with the lowest rank, to keep the number of
// connections low. n.mu must be held.
func (n *node) wakeIfDue() {
	if !n.due() {
		return
	}
	for _, w := range n.writers[:n.usable()] {
		if w.idle {
			w.idle = false
			w.cond.Signal()
			return
		}
	}
}

// connected reports whether a writer has a connection.
func (n *node) connected() bool { return n.links.Load() > 0 }

// lookAgain wakes up a writer if a batch is due now.
func (n *node) lookAgain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks = false
	n.wakeIfDue()
}

// tooLate reports whether to shed a call of a flow, because the last of its ops operations would probably not be answered within budget.
// The node's base time, which is known well, does not indicate overload; the time beyond it does, but is uncertain.
func (n *node) tooLate(flow backend.Flow, ops int, budget time.Duration) bool {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return false // a batch must find out whether the node is faster now
	}
	late := func(ahead int) bool {
		return remote.TooLate(n.pace.Estimate().Of(sent+ahead+ops), budget-n.ways(ahead+ops))
	}
	if !late(queued) {
		return false // ahead never returns more than this
	}
	n.mu.Lock()
	ahead := n.queue.ahead(flow, ops)
	n.mu.Unlock()
	return late(ahead)
}

// ways returns the network time of the last of queued operations, including the wait for a writer.
func (n *node) ways(queued int) time.Duration {
	way := n.pace.Estimate().Base()
	if n.room() && queued <= maxCommands {
		return way
	}
	return way + way*time.Duration(queued/maxCommands+1)/time.Duration(n.usable())
}

// waits returns the expected wait of an operation that arrives now; 0 if there are no others.
func (n *node) waits() time.Duration {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return 0
	}
	return n.ways(queued) + n.pace.Estimate().Of(sent+queued)
}

// drop removes an item from the queue, and reports whether it was there.
func (n *node) drop(it *item) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if it.list == nil {
		return false
	}
	n.queue.remove(it)
	return true
}

// await makes w wait until a batch is due (work is true), until a tick after that in *tick, or until the writers are stopped. It updates
// *tick. A further writer without a connection ignores ticks.
func (n *node) await(w *writer, tick *int) (work, stopped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	due := func() bool { // further writers need a connected node: the first ones find out whether it is reachable
		return (!w.further() || n.connected() && w.rank < n.usable()) && n.due()
	}
	for !due() && (n.ticks == *tick || w.further() && w.link == nil) && !n.stopped {
		w.idle = true
		w.cond.Wait()
	}
	w.idle = false
	*tick = n.ticks
	return due(), n.stopped
}

// tick makes idle writers check their connections.
func (n *node) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ticks++
	n.wakeAll()
}

// wakeAll wakes up all idle writers. n.mu must be held.
func (n *node) wakeAll() {
	for _, w := range n.writers {
		w.cond.Signal()
	}
}

// reconnect makes waiting writers reconnect immediately.
func (n *node) reconnect() {
	for range n.usable() {
		select {
		case n.again <- struct{}{}:
		default:
			return
		}
	}
}

// stop stops the writers and fails everything in the queue.
func (n *node) stop(why *remote.Error) {
	n.mu.Lock()
	n.stopped = true
	n.wakeAll()
	n.mu.Unlock()
	n.fail(why)
}

// fail fails everything in the queue with e.
func (n *node) fail(e *remote.Error) {
	n.mu.Lock()
	var items []*item
	for n.queue.length.Load() > 0 {
		items = n.queue.cut(items, maxCommands, maxWeight)
	}
	n.mu.Unlock()
	for _, it := range items {
		it.failAll(e)
	}
}

// cut moves items for a batch from the queue to items. onWay is the number of operations in progress including these; full reports
// whether others remain in the queue.
func (n *node) cut(items []*item) (batch []*item, onWay int, full bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.queue.length.Load()
	batch = n.queue.cut(items, maxCommands, maxWeight)
	left := n.queue.length.Load()
	if taken := before - left; taken > 0 {
		n.sent.Add(taken)
		n.flying.Add(1)
		n.cutAt = time.Now()
	}
	n.wakeIfDue() // for another writer
	return batch, int(n.sent.Load()), left > 0
}

// completed records that a batch of ops operations with a total weight has been answered.
func (n *node) completed(ops int, weight int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := !n.room()
	n.sent.Add(int64(-ops))
	n.flying.Add(-1)
	n.weight.Add(-weight)
	if full {
		n.wakeIfDue() // the completed writer may have other work before its next check
	}
}

// together reports whether one call may have several keys. That requires a single server: a proxy with several servers would send the
// call to one of them, by its first key, and each server would count separately.
func (n *node) together() bool { return n.alone.Load() && !n.apart.Load() }

// identify determines whether there is a single server behind l. A server named by sentinels is.
func (n *node) identify(ctx context.Context, l *link) (err error) {
	p, one := n.pool, true
	switch {
	case p.config.KeyFormat != OurKeys || p.cluster != nil:
		return nil
	case p.sentinels == nil:
		one, err = alone(ctx, l, p.config.KeyPrefix)
	}
	if err == nil {
		n.alone.Store(one)
	}
	return err
}

// start runs the writers of n until ctx ends.
func (n *node) start(ctx context.Context, wg *sync.WaitGroup) {
	context.AfterFunc(ctx, func() { n.stop(errStopped) })
	for _, w := range n.writers {
		wg.Go(func() { w.serve(ctx) })
	}
}
