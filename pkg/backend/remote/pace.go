package remote

import (
	"sync"
	"sync/atomic"
	"time"
)

// Pace knows how long a server takes to answer: a base, whatever it is asked for, which is mostly the way there and back, and so much for
// each operation that is on its way to it. It is a line through what batches took of late, by least squares that forget. Its zero value
// knows nothing yet, and expects no waiting. Its methods are safe for concurrent use.
//
// How many operations are answered in a time would say less: a server that is far away answers as few as it is asked for in the time of the
// way. Who asked it for fewer then, because they wait too long, would wait as long for each.
type Pace struct {
	way, each atomic.Int64 // ns

	mu         sync.Mutex
	batches    int
	last       time.Time // when the last one ended
	ops, took  float64   // moving averages, of operations and of ns
	vari, covr float64   // variance of the operations, and their covariance with what they took
	busy       float64   // share of batches for which others waited
}

// What a Pace remembers.
const (
	paceSpan  = 200 * time.Millisecond // about how long
	paceMost  = 1.0 / 8                // what one batch counts for at most
	paceLeast = 1.0 / 64               // and at least
	paceFirst = 16                     // batches say less, the fewer there are: a server that was just begun with is slow
	paceJump  = 4                      // times what batches take is believed of one; more is no sign of what an operation takes
	paceDoubt = 0.01                   // of the square of the average: a variance below it hardly says what an operation takes
)

// Done notes a batch, from when it was formed until it was answered. With it ops operations were on their way. Busy says whether others
// had to wait for it: then what it took is taken for what its operations did, as far as it is not known better.
func (p *Pace) Done(begin, end time.Time, ops int, busy bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, y, waited := float64(ops), float64(end.Sub(begin)), 0.0
	if ops <= 0 || y <= 0 {
		return
	}
	if busy {
		waited = 1
	}
	if p.batches++; p.batches == 1 {
		p.ops, p.took = x, y
	}
	g := min(max(float64(end.Sub(p.last))/float64(paceSpan), paceLeast), paceMost)
	p.last = end
	dx, dy := x-p.ops, y-p.took
	if most := (paceJump-1)*p.took + float64(time.Millisecond); dy > most {
		dx, dy = 0, most
	}
	p.ops += g * dx
	p.took += g * dy
	p.vari = (1 - g) * (p.vari + g*dx*dx)
	p.covr = (1 - g) * (p.covr + g*dx*dy)
	p.busy += g * (waited - p.busy)
	p.fit()
}

// fit lays the line.
func (p *Pace) fit() {
	known := min(float64(p.batches)/paceFirst, 1)
	whole := p.took / p.ops // what an operation takes if there is no base
	doubt := paceDoubt * p.ops * p.ops
	each := min(max((p.covr+doubt*whole*p.busy)/(p.vari+doubt), 0), whole)
	p.each.Store(int64(known * each))
	p.way.Store(int64(known * (p.took - each*p.ops)))
}

// Of returns about how long n operations take beyond [Pace.Way].
func (p *Pace) Of(n int) time.Duration { return time.Duration(int64(n) * p.each.Load()) }

// Way returns about how long the server takes at least.
func (p *Pace) Way() time.Duration { return time.Duration(p.way.Load()) }

// Hopeless reports whether a call with the given budget (see [Budget]) that would probably wait for so long is to be shed: it
// would have too little left where the estimate is too low.
func Hopeless(wait, budget time.Duration) bool { return wait > budget/2 }
