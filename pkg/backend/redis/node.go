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
	maxCalls    = 16_384                 // calls under way; further ones are refused at once
	manyCalls   = 1024                   // calls under way above which further ones are refused if the node is silent
	maxCommands = 128                    // in a batch, exceeded, as maxWeight, only by what its last call asks of one key
	maxWriters  = 2                      // of a node
	lateAfter   = time.Millisecond       // how old a batch has to be for a smaller one to follow it
	quietFor    = 500 * time.Millisecond // after so long without an answer a crowd is no longer let in
)

// node is one server, with a queue and the writers that empty it.
type node struct {
	pool    *pool
	addr    string
	resolve func(context.Context) (string, error) // where to connect to
	breaker *remote.Breaker
	writers []*writer

	links    atomic.Int32 // connections that are up
	denied   atomic.Int32 // writers whose user may not do what decisions need
	renewed  atomic.Int64 // how many times all connections had to be renewed
	renewing atomic.Bool  // a writer opens a connection in place of one that still works
	alone    atomic.Bool  // it is known to be one server, so that a call may have any keys
	apart    atomic.Bool  // its process has refused a call with several keys
	run      atomic.Pointer[string]
	end      context.CancelFunc // ends the writers, for a node of a cluster
	again    chan struct{}      // makes writers that wait before they reconnect do so now

	pace remote.Pace
	sent atomic.Int64 // operations that writers have taken from the queue and not answered

	mu      sync.Mutex
	wake    sync.Cond
	queue   queue
	cutAt   time.Time   // when a writer last took from it
	look    *time.Timer // has a writer look whether what waits is due
	looks   bool        // it runs
	ticks   int
	stopped bool
}

func (p *pool) newNode(addr string, resolve func(context.Context) (string, error)) *node {
	n := &node{pool: p, addr: addr, resolve: resolve, again: make(chan struct{}, maxWriters)}
	n.wake.L = &n.mu
	n.look = time.AfterFunc(time.Hour, n.lookAgain)
	n.look.Stop()
	n.breaker = remote.NewBreaker(store, addr, remote.BreakerConfig{
		OpTimeout: p.config.OpTimeout, AtOnce: ClassBusy, Changed: p.observer.Breaker, Silenced: n.silenced,
	})
	return n
}

// admit returns nil if n takes operations, or why not. If it takes one as a probe, the caller should not count on an
// answer.
func (n *node) admit(now time.Time, budget time.Duration) (probe bool, refused *remote.Error) {
	probe = n.breaker.Shut()
	refused = n.breaker.Admit(now, budget)
	return probe && refused == nil, refused
}

// silenced is called when n has become silent, and when that is over. In silence everything in the queue is answered at
// once, and callers whose operations have been sent are told that there is nothing to wait for.
func (n *node) silenced(silent bool) {
	if !silent {
		return
	}
	n.fail(n.breaker.Mute())
	for _, w := range n.writers {
		w.poke()
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
	due := n.due()
	n.mu.Unlock()
	if due {
		n.wake.Signal()
	}
	return nil
}

// due reports whether a writer is to send what waits. While the other one waits for an answer it is to have as much to send
// as that one had, or the answer to be late: two batches of the same size cost everybody less than a large one and whatever
// has come since. If not, it sees to it that somebody asks again. n.mu must be held.
func (n *node) due() bool {
	queued, sent := n.queue.length.Load(), n.sent.Load()
	if queued == 0 || queued >= sent {
		return queued > 0
	}
	left := lateAfter - time.Since(n.cutAt)
	if left > 0 && !n.looks {
		n.looks = true
		n.look.Reset(left)
	}
	return left <= 0
}

// lookAgain wakes a writer if what waits is due now.
func (n *node) lookAgain() {
	n.mu.Lock()
	n.looks = false
	due := n.due()
	n.mu.Unlock()
	if due {
		n.wake.Signal()
	}
}

// wait returns how long the last of ops new operations of a call of the given flow would probably wait for its answer,
// or 0 if nothing is ahead of the call.
func (n *node) wait(flow backend.Flow, ops int) time.Duration {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return 0
	}
	if all := n.pace.Of(sent + queued + ops); all < time.Millisecond { // whoever goes first
		return all
	}
	n.mu.Lock()
	ahead := n.queue.ahead(flow, ops)
	n.mu.Unlock()
	return n.pace.Of(sent + ahead + ops)
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

// await waits until something is due, in which case work is true, there has been a tick since the one in *tick, or the
// writers are stopped. It updates *tick.
func (n *node) await(tick *int) (work, stopped bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for !n.due() && n.ticks == *tick && !n.stopped {
		n.wake.Wait()
	}
	*tick = n.ticks
	return n.due(), n.stopped
}

// tick has idle writers check their connections.
func (n *node) tick() {
	n.mu.Lock()
	n.ticks++
	n.mu.Unlock()
	n.wake.Broadcast()
}

// reconnect makes writers that wait before they connect again do so now.
func (n *node) reconnect() {
	for range maxWriters {
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
	n.mu.Unlock()
	n.wake.Broadcast()
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

// cut removes items for a batch from the queue, and appends them to items.
func (n *node) cut(items []*item) []*item {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.queue.length.Load()
	items = n.queue.cut(items, maxCommands, maxWeight)
	if taken := before - n.queue.length.Load(); taken > 0 {
		n.sent.Add(taken)
		n.cutAt = time.Now()
	}
	if n.due() {
		n.wake.Signal() // for the other writer
	}
	return items
}

// start runs the writers of n until ctx ends.
func (n *node) start(ctx context.Context, wg *sync.WaitGroup) {
	context.AfterFunc(ctx, func() { n.stop(errStopped) })
	for i := range min(maxWriters, n.pool.config.PoolSize) {
		n.writers = append(n.writers, &writer{node: n, keys: map[backend.Key]int{}, watches: i == 0})
	}
	for _, w := range n.writers {
		wg.Go(func() { w.serve(ctx) })
	}
}
