package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Bounds on what waits.
const (
	maxCalls    = 16_384                 // calls under way; further ones fail immediately
	manyCalls   = 1024                   // calls under way above which further ones fail if the node is silent
	maxCommands = 128                    // in a batch, exceeded, as maxWeight, only by what its last call asks of one key
	nearWriters = 2                      // of a node that is near; to one that is far there may be as many as Config.PoolSize says
	maxWriters  = 16                     // of any
	farAway     = 3 * time.Millisecond   // from here on two batches on their way would leave a node idle for most of the time
	lateAfter   = time.Millisecond       // how old a batch has to be for a smaller one to follow it
	unusedFor   = 10 * time.Second       // how long a writer that only a far node needs keeps a connection without a batch
	quietFor    = 500 * time.Millisecond // after so long without an answer a crowd is no longer let in
)

// node is one server, with a queue and the writers that empty it.
type node struct {
	pool    *pool
	addr    string
	resolve func(context.Context) ([]string, error) // where it may be, the likeliest first
	breaker *remote.Breaker
	writers []*writer
	most    int32 // how many there are

	links    atomic.Int32 // connections that are up
	renewed  atomic.Int64 // how many times all connections had to be renewed
	renewing atomic.Bool  // a writer opens a connection in place of one that still works
	alone    atomic.Bool  // it is known to be one server, so that a call may have any keys
	apart    atomic.Bool  // its process has failed a call with several keys
	run      atomic.Pointer[string]
	end      context.CancelFunc // ends the writers, for a node of a cluster
	again    chan struct{}      // makes writers that wait before they reconnect do so now

	pace   remote.Pace
	sent   atomic.Int64 // operations that writers have taken from the queue and not answered
	flying atomic.Int32 // batches that these are in
	weight atomic.Int64 // of the operations in them that are not light, in µs

	mu      sync.Mutex
	queue   queue
	cutAt   time.Time   // when a writer last took from it
	look    *time.Timer // has a writer look whether what waits is due
	looks   bool        // it runs
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

// at returns a resolve that knows the address.
func at(addr string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return []string{addr}, nil }
}

// open opens a connection to n, wherever it is now.
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

// admit returns nil if n takes operations, or why not. If it takes one as a probe, the caller should not count on an
// answer.
func (n *node) admit(now time.Time, budget time.Duration) (probing bool, unsent *remote.Error) {
	probing = n.breaker.Shut()
	unsent = n.breaker.Admit(now, budget)
	return probing && unsent == nil, unsent
}

// silenced is called when n has become silent, and when that is over. In silence everything in the queue is answered at
// once, and callers whose operations have been sent are told that there is nothing to wait for.
func (n *node) silenced(silent bool) {
	if !silent {
		return
	}
	n.fail(n.breaker.Mute())
	for _, w := range n.writers {
		w.wake()
	}
}

// push queues it, the index-th operation of its call, and wakes an idle writer. It returns why not if the writers have
// been stopped, or n is silent.
func (n *node) push(it *item, index int) *remote.Error {
	n.mu.Lock()
	switch {
	case n.stopped:
		n.mu.Unlock()
		return errStopped
	case n.breaker.Silence.Silent(): // since it was admitted
		n.mu.Unlock()
		return n.breaker.Mute()
	}
	n.queue.push(it, index)
	n.wakeIfDue()
	n.mu.Unlock()
	return nil
}

// due reports whether a writer is to send what waits. While another one waits for an answer it is to have as much to send as is on
// its way, or the last batch to be late: two batches of the same size cost all callers less than a large one and whatever has come
// since. If not, it makes sure that another writer asks again. More than the usual ones send only where there is room for that. n.mu must be
// held.
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

// room reports whether another batch may be sent before the next answer has come: nearWriters may, and more of them to a node that is
// far away and done with all that is on its way sooner than it can be heard of.
func (n *node) room() bool {
	flying := n.flying.Load()
	if flying < min(nearWriters, n.most) {
		return true
	}
	weighs := time.Duration(n.weight.Load()) * time.Microsecond
	return flying < n.usable() && max(n.pace.Of(int(n.sent.Load())), weighs) < n.pace.Way()
}

// usable returns how many writers may send: to a node that is far away one for each lateAfter of the way, since so many batches are sent
// before the first has been answered.
func (n *node) usable() int32 {
	if way := n.pace.Way(); way >= farAway {
		return int32(min(way/lateAfter, time.Duration(n.most)))
	}
	return min(nearWriters, n.most)
}

// wakeIfDue has an idle writer send what waits, if that is due: of those that may send, the one of the lowest rank, so that no more of
// them keep a connection than have to. n.mu must be held.
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

// lookAgain wakes a writer if what waits is due now.
func (n *node) lookAgain() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks = false
	n.wakeIfDue()
}

// tooLate reports whether a call of a flow that has so long is to be shed: its last of ops operations would probably not be answered in
// time. How long the node takes at least is no sign of too much, and is known well; what comes on top of it is not.
func (n *node) tooLate(flow backend.Flow, ops int, budget time.Duration) bool {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return false // a batch has to find out whether the node is quicker now
	}
	late := func(ahead int) bool { return remote.TooLate(n.pace.Of(sent+ahead+ops), budget-n.ways(ahead+ops)) }
	if !late(queued) {
		return false // the next one does
	}
	n.mu.Lock()
	ahead := n.queue.ahead(flow, ops)
	n.mu.Unlock()
	return late(ahead)
}

// ways returns how long the last of so many operations in the queue is on its way, after it has waited for a writer.
func (n *node) ways(queued int) time.Duration {
	way := n.pace.Base()
	if n.room() && queued <= maxCommands {
		return way
	}
	return way + way*time.Duration(queued/maxCommands+1)/time.Duration(n.usable())
}

// waits returns how long an operation that comes now would probably wait; 0 if there is no other one.
func (n *node) waits() time.Duration {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return 0
	}
	return n.ways(queued) + n.pace.Of(sent+queued)
}

// drop removes it from the queue, and reports whether it was there.
func (n *node) drop(it *item) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if it.list == nil {
		return false
	}
	n.queue.remove(it)
	return true
}

// await has w wait until something is due, in which case work is true, there has been a tick since the one in *tick, or the
// writers are stopped. It updates *tick. A writer that only a far node needs, and that has no connection, waits on after a tick.
func (n *node) await(w *writer, tick *int) (work, stopped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	due := func() bool { // of further writers only if there is a connection: else the first ones find out whether the node is there
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

// tick has idle writers check their connections.
func (n *node) tick() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ticks++
	n.wakeAll()
}

// wakeAll wakes all idle writers. n.mu must be held.
func (n *node) wakeAll() {
	for _, w := range n.writers {
		w.cond.Signal()
	}
}

// reconnect makes writers that wait before they connect again do so now.
func (n *node) reconnect() {
	for range n.usable() {
		select {
		case n.again <- struct{}{}:
		default:
			return
		}
	}
}

// stop ends the writers, and fails everything in the queue.
func (n *node) stop(why *remote.Error) {
	n.mu.Lock()
	n.stopped = true
	n.wakeAll()
	n.mu.Unlock()
	n.fail(why)
}

// fail answers everything in the queue with e.
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

// cut removes items for a batch from the queue, and appends them to items. With them so many operations are on their way; full says
// whether others had to be left.
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

// completed notes that so many operations of a batch have been answered, which weighed so much.
func (n *node) completed(ops int, weight int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := !n.room()
	n.sent.Add(int64(-ops))
	n.flying.Add(-1)
	n.weight.Add(-weight)
	if full {
		n.wakeIfDue() // no one else would: the writer that has completed may have something else to do first
	}
}

// together reports whether one call may have several keys. That needs one server: a proxy before several would send a
// call to one of them, by its first key, and each would count for itself.
func (n *node) together() bool { return n.alone.Load() && !n.apart.Load() }

// identify finds out whether there is one server at the other end of l. One that sentinels have named is.
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
