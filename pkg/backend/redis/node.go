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
	maxCalls     = 16_384                 // calls under way; further ones are refused at once
	manyCalls    = 1024                   // calls under way above which further ones are refused if the node is silent
	maxCommands  = 128                    // in a batch, exceeded, as maxWeight, only by what its last call asks of one key
	usualWriters = 2                      // of a node that is near
	maxWriters   = 16                     // of one that is far away
	lateAfter    = time.Millisecond       // how old a batch has to be for a smaller one to follow it
	moreAfter    = 200 * time.Millisecond // for how long more writers have to be of use
	fewerAfter   = time.Second            // for how long fewer have to be enough
	spareFor     = 10 * time.Second       // for how long one that is not wanted keeps its connection
	quietFor     = 500 * time.Millisecond // after so long without an answer a crowd is no longer let in
)

// node is one server, with a queue and the writers that empty it.
type node struct {
	pool    *pool
	addr    string
	resolve func(context.Context) ([]string, error) // where it may be, the likeliest first
	breaker *remote.Breaker
	writers []*writer // the first ones serve; the others do once they are wanted

	links    atomic.Int32 // connections that are up
	spares   atomic.Int32 // of these, those of writers in reserve
	denied   atomic.Int32 // writers whose user may not do what decisions need
	renewed  atomic.Int64 // how many times all connections had to be renewed
	renewing atomic.Bool  // a writer opens a connection in place of one that still works
	alone    atomic.Bool  // it is known to be one server, so that a call may have any keys
	apart    atomic.Bool  // its process has refused a call with several keys
	run      atomic.Pointer[string]
	end      context.CancelFunc // ends the writers, for a node of a cluster
	again    chan struct{}      // makes writers that wait before they reconnect do so now

	pace   remote.Pace
	sent   atomic.Int64 // operations that writers have taken from the queue and not answered
	flying atomic.Int32 // batches that these are in
	weight atomic.Int64 // of the operations in them that are not light, in µs
	wanted atomic.Int32 // how many writers serve; once they run it changes with mu held

	mu       sync.Mutex
	wake     sync.Cond // where writers that serve wait
	reserve  sync.Cond // where the others do
	enough   time.Time // when more writers would last have been of no use
	plenty   time.Time // when fewer would last not have been enough
	mustered time.Time // when that was last looked at
	queue    queue
	cutAt    time.Time   // when a writer last took from it
	look     *time.Timer // has a writer look whether what waits is due
	looks    bool        // it runs
	ticks    int
	stopped  bool
}

func (p *pool) newNode(addr string, resolve func(context.Context) ([]string, error)) *node {
	n := &node{pool: p, addr: addr, resolve: resolve, again: make(chan struct{}, maxWriters)}
	n.wake.L, n.reserve.L = &n.mu, &n.mu
	n.look = time.AfterFunc(time.Hour, n.lookAgain)
	n.look.Stop()
	n.wanted.Store(int32(min(usualWriters, p.config.PoolSize))) //nolint:gosec // two
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

// due reports whether a writer is to send what waits. While another one waits for an answer it is to have as much to send as is on
// its way, or the last batch to be late: two batches of the same size cost everybody less than a large one and whatever has come
// since. If not, it sees to it that somebody asks again. More than the usual ones send only where there is room for that. n.mu must be
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

// room reports whether another batch may be sent before the next answer has come: the usual ones may, and more of them to a node that
// is done with all that is on its way sooner than it can be heard of.
func (n *node) room() bool {
	flying, wanted := n.flying.Load(), n.wanted.Load()
	if flying < min(wanted, usualWriters) {
		return true
	}
	weighs := time.Duration(n.weight.Load()) * time.Microsecond
	return flying < wanted && max(n.pace.Of(int(n.sent.Load())), weighs) < n.pace.Way()
}

// connected reports whether a writer that serves has a connection.
func (n *node) connected() bool { return n.links.Load() > n.spares.Load() }

// muster finds how many writers are to serve: as many as send batches until the first has been answered, one lateAfter after the other. A
// node that is far away stays there, so their number changes only once another one has been right for a while.
func (n *node) muster(now time.Time) {
	most := int32(len(n.writers)) //nolint:gosec // a few
	want := min(max(int32(min(n.pace.Way()/lateAfter, maxWriters)), usualWriters), most)
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.mustered) > fewerAfter { // one batch alone says too little
		n.enough, n.plenty = now, now
	}
	n.mustered = now
	has := n.wanted.Load()
	switch {
	case want > has:
		n.plenty = now
		if now.Sub(n.enough) > moreAfter {
			n.wanted.Store(want)
			n.enough = now
			n.reserve.Broadcast()
		}
	case want < has-1, want == usualWriters && want < has:
		n.enough = now
		if now.Sub(n.plenty) > fewerAfter {
			n.wanted.Store(want)
			n.plenty = now
		}
	default:
		n.enough, n.plenty = now, now
	}
}

// enlist waits until w is wanted. A connection that works is kept for a while meanwhile. It returns false once the writers are stopped.
func (n *node) enlist(w *writer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for since := time.Now(); w.rank >= n.wanted.Load() && !n.stopped; {
		n.mu.Unlock()
		if !w.ready() || time.Since(since) > spareFor {
			w.hangUp()
			w.lacks(lack{}) // nothing that anybody would notice
		}
		n.mu.Lock()
		if w.rank < n.wanted.Load() || n.stopped {
			break
		}
		if w.link != nil {
			n.spares.Add(1)
		}
		n.reserve.Wait()
		if w.link != nil {
			n.spares.Add(-1)
		}
	}
	return !n.stopped
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

// hopeless reports whether a call of a flow that has so long is to be shed: its last of ops operations would probably not be answered in
// time. How long the node takes at least is no sign of too much, and is known well; what comes on top of it is not.
func (n *node) hopeless(flow backend.Flow, ops int, budget time.Duration) bool {
	sent, queued := int(n.sent.Load()), int(n.queue.length.Load())
	if sent+queued == 0 {
		return false // somebody has to find out whether the node is quicker now
	}
	late := func(ahead int) bool { return remote.Hopeless(n.pace.Of(sent+ahead+ops), budget-n.ways(ahead+ops)) }
	if !late(queued) {
		return false // whoever goes first
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
	return way + way*time.Duration(queued/maxCommands+1)/time.Duration(max(n.wanted.Load(), 1))
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
	if n.spares.Load() > 0 {
		n.reserve.Broadcast()
	}
}

// reconnect makes writers that wait before they connect again do so now.
func (n *node) reconnect() {
	for range n.wanted.Load() {
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
	n.reserve.Broadcast()
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
	if n.due() {
		n.wake.Signal() // for another writer
	}
	return batch, int(n.sent.Load()), left > 0
}

// landed notes that so many operations of a batch have been answered, which weighed so much.
func (n *node) landed(ops int, weight int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	full := !n.room()
	n.sent.Add(int64(-ops))
	n.flying.Add(-1)
	n.weight.Add(-weight)
	if full && n.due() {
		n.wake.Signal() // nobody else would: who has landed may have something else to do first
	}
}

// start runs the writers of n until ctx ends.
func (n *node) start(ctx context.Context, wg *sync.WaitGroup) {
	context.AfterFunc(ctx, func() { n.stop(errStopped) })
	for i := range int32(min(maxWriters, n.pool.config.PoolSize)) { //nolint:gosec // a few
		n.writers = append(n.writers, &writer{node: n, rank: i, keys: map[backend.Key]int{}, watches: i == 0})
	}
	for _, w := range n.writers {
		wg.Go(func() { w.serve(ctx) })
	}
}
