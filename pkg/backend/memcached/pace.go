package memcached

import (
	"sync"
	"sync/atomic"
	"time"
)

// pace knows how many operations a server answers in a time, from batches that ended while others were waiting: only
// then is the server what they wait for. A batch after which nobody waits says that the server takes no longer than that,
// which must count too: otherwise a server that was slow once would have everybody turned away who would have to wait, and
// so never be seen to be quick again. Its zero value knows nothing yet, and expects no waiting. Its methods are safe for
// concurrent use.
type pace struct {
	perOp atomic.Int64 // ns

	mu   sync.Mutex
	last time.Time // when the last batch ended
}

// paceMemory is how many operations a pace remembers, more or less.
const paceMemory = 2048

// done notes a batch of ops operations, from when it was formed until it was answered. Busy says whether others were
// waiting at its end.
func (p *pace) done(begin, end time.Time, ops int, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.After(begin) {
		begin = p.last
	}
	p.last = end
	if ops == 0 || !end.After(begin) {
		return
	}
	n, perOp, old := int64(min(ops, paceMemory/4)), int64(end.Sub(begin))/int64(ops), p.perOp.Load()
	if busy || perOp < old {
		p.perOp.Store(old + (perOp-old)*n/paceMemory)
	}
}

// of returns about how long n operations take.
func (p *pace) of(n int) time.Duration { return time.Duration(int64(n) * p.perOp.Load()) }
