package remote

import (
	"sync"
	"sync/atomic"
	"time"
)

// Pace knows how long a server takes to answer: a base, whatever it is asked for, which is mostly the way there and back, and so much for
// each operation that is on its way to it. It is a line through what batches took recently, by least squares that forget. Its zero value
// knows nothing yet, and expects no waiting. Its methods are safe for concurrent use.
//
// How many operations are answered in a time would say less: a server that is far away answers as few as it is asked for in the time of the
// way. Who asked it for fewer then, because they wait too long, would wait as long for each.
type Pace struct {
	estimate atomic.Pointer[Estimate]

	mu sync.Mutex
	line
}

// line is what a Pace has seen.
type line struct {
	batches    int
	last       time.Time        // when the last one ended
	ops, took  float64          // moving averages, of operations and of ns
	vari, covr float64          // variance of the operations, and their covariance with what they took
	busy       float64          // share of batches for which others waited
	least      [2]time.Duration // that a batch took, now and before
	turned     time.Time        // when the first of these was begun
}

// What a Pace remembers.
const (
	paceSpan   = 200 * time.Millisecond // about how long
	paceMost   = 1.0 / 8                // what one batch counts for at most
	paceLeast  = 1.0 / 64               // and at least
	paceFirst  = 16                     // batches say less, the fewer there are: a server that was just begun with is slow
	paceJump   = 4                      // times what batches take is believed of one
	paceDoubt  = 0.01                   // of the square of the average: a variance below it hardly says what an operation takes
	paceFloor  = 30 * time.Second       // how long the least is remembered, once or twice
	paceUneven = 8                      // times the least that a batch took may be the way
	paceStale  = 2 * time.Second        // without a batch it is not known
)

// Done notes a batch, from when it was formed until it was answered. With it ops operations were on their way. Busy says whether others
// had to wait for it: then what it took beyond the least is taken for what its operations did, as far as it is not known better.
func (p *Pace) Done(begin, end time.Time, ops int, busy bool) {
	took := end.Sub(begin)
	if ops <= 0 || took <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(end, took, float64(ops), busy)
	base, each := p.fit()
	known := min(float64(p.batches)/paceFirst, 1)
	p.estimate.Store(&Estimate{
		base: time.Duration(known * base), each: time.Duration(known * each), heard: end,
		way: time.Duration(known * min(base, paceUneven*float64(p.floor()))),
	})
}

// add adds a batch.
func (l *line) add(end time.Time, took time.Duration, ops float64, busy bool) {
	waited := 0.0
	if busy {
		waited = 1
	}
	l.batches++
	g := max(min(max(float64(end.Sub(l.last))/float64(paceSpan), paceLeast), paceMost), 1/float64(l.batches))
	dx, dy := ops-l.ops, float64(took)-l.took
	if l.batches > 1 {
		dy = min(dy, (paceJump-1)*l.took+float64(time.Millisecond))
	} else {
		l.ops, l.took, dx, dy = ops, float64(took), 0, 0
	}
	l.last = end
	l.ops += g * dx
	l.took += g * dy
	l.vari = (1 - g) * (l.vari + g*dx*dx)
	l.covr = (1 - g) * (l.covr + g*dx*dy)
	l.busy += g * (waited - l.busy)
	// A server that is busy all the time answers no call quickly.
	if l.batches == 1 || end.Sub(l.turned) > paceFloor && l.busy <= 0.5 {
		l.least, l.turned = [2]time.Duration{took, l.least[0]}, end
	}
	l.least[0] = min(l.least[0], took)
}

// fit returns the base, and what each operation takes.
func (l *line) fit() (base, each float64) {
	whole := l.took / l.ops // what an operation takes if there is no base
	guess := max(l.took-float64(l.floor()), 0) / l.ops * l.busy
	doubt := paceDoubt * l.ops * l.ops
	each = min(max((l.covr+doubt*guess)/(l.vari+doubt), 0), whole)
	return l.took - each*l.ops, each
}

// floor returns the least that a batch took recently.
func (l *line) floor() time.Duration {
	if l.least[1] > 0 {
		return min(l.least[0], l.least[1])
	}
	return l.least[0]
}

// Estimate is how long a server takes. The zero Estimate expects no waiting.
type Estimate struct {
	base, way, each time.Duration
	heard           time.Time // when the last batch ended
}

// Estimate returns what is known now.
func (p *Pace) Estimate() (e Estimate) {
	if known := p.estimate.Load(); known != nil {
		e = *known
	}
	return e
}

// Base returns about how long the server takes for next to nothing.
func (e Estimate) Base() time.Duration { return e.base }

// Of returns about how long n operations take beyond [Estimate.Base].
func (e Estimate) Of(n int) time.Duration { return time.Duration(n) * e.each }

// Way returns how much of [Estimate.Base] is the way there and back, for all that is known: a server that is near, and takes long
// because it has much to do, or this process has, is quick now and then. It is 0 if that has not been seen for a while.
func (e Estimate) Way() time.Duration {
	if time.Since(e.heard) > paceStale {
		return 0
	}
	return e.way
}

// Reset forgets all, since the server is another one.
func (p *Pace) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = line{}
	p.estimate.Store(nil)
}

// TooLate reports whether a call with the given budget (see [Budget]) that would probably wait for so long is to be shed: it
// would have too little left where the estimate is too low.
func TooLate(wait, budget time.Duration) bool { return wait > budget/2 }
