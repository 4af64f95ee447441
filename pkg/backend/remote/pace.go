package remote

import (
	"sync"
	"sync/atomic"
	"time"
)

// Pace estimates how long a server takes to answer: a base, mostly the network's round-trip time, plus a time per operation in progress.
// It fits a line through recent batches, by least squares with exponential forgetting. The zero value has no data and expects no waiting.
// The methods are safe for concurrent use.
//
// Throughput would be a worse measure. A distant server that gets few operations answers few per round trip, so sending it fewer
// operations, because they wait too long, would lower the throughput but not the wait.
type Pace struct {
	estimate atomic.Pointer[Estimate]

	mu sync.Mutex
	line
}

// line is the state of the regression.
type line struct {
	batches    int
	last       time.Time        // end of the last batch
	ops, took  float64          // moving averages: operations per batch, and its duration in ns
	vari, covr float64          // variance of the operations, and their covariance with the duration
	busy       float64          // fraction of batches for which others waited
	least      [2]time.Duration // shortest durations of a batch, in the current and the previous period
	turned     time.Time        // start of the current period
}

// Parameters of the estimate.
const (
	paceSpan   = 200 * time.Millisecond // approximate memory
	paceMost   = 1.0 / 8                // maximum weight of one batch
	paceLeast  = 1.0 / 64               // minimum weight of one batch
	paceFirst  = 16                     // batches until full confidence: a server that was just connected is slow
	paceJump   = 4                      // a batch counts for at most this multiple of the average duration
	paceDoubt  = 0.01                   // as a fraction of the squared average: below this variance, the slope is unreliable
	paceFloor  = 30 * time.Second       // length of a period of line.least
	paceUneven = 8                      // the round-trip time is at most this multiple of the shortest duration
	paceStale  = 2 * time.Second        // age of the last batch after which the round-trip time is unknown
)

// Done records a batch of ops operations, formed at begin and answered at end. busy indicates that other operations waited for it. Then,
// as long as the slope is unreliable, the time beyond the shortest duration is attributed to the operations.
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
	// The shortest duration is kept while a server is busy, because a busy server never answers quickly.
	if l.batches == 1 || end.Sub(l.turned) > paceFloor && l.busy <= 0.5 {
		l.least, l.turned = [2]time.Duration{took, l.least[0]}, end
	}
	l.least[0] = min(l.least[0], took)
}

// fit returns the base and the time per operation, in ns.
func (l *line) fit() (base, each float64) {
	whole := l.took / l.ops // time per operation without a base
	guess := max(l.took-float64(l.floor()), 0) / l.ops * l.busy
	doubt := paceDoubt * l.ops * l.ops
	each = min(max((l.covr+doubt*guess)/(l.vari+doubt), 0), whole)
	return l.took - each*l.ops, each
}

// floor returns the shortest recent duration of a batch.
func (l *line) floor() time.Duration {
	if l.least[1] > 0 {
		return min(l.least[0], l.least[1])
	}
	return l.least[0]
}

// Estimate contains the expected durations for a server. The zero Estimate expects no waiting.
type Estimate struct {
	base, way, each time.Duration
	heard           time.Time // end of the last batch
}

// Estimate returns the current estimate.
func (p *Pace) Estimate() (e Estimate) {
	if known := p.estimate.Load(); known != nil {
		e = *known
	}
	return e
}

// Base returns the approximate duration of a round trip with almost no work.
func (e Estimate) Base() time.Duration { return e.base }

// Of returns the approximate time that n operations add to [Estimate.Base].
func (e Estimate) Of(n int) time.Duration { return time.Duration(n) * e.each }

// Way returns the part of [Estimate.Base] that is probably the network's round-trip time. It is bounded by the fastest recent answers,
// because a nearby server that is slow under load still answers quickly now and then. It is 0 without recent answers.
func (e Estimate) Way() time.Duration {
	if time.Since(e.heard) > paceStale {
		return 0
	}
	return e.way
}

// Reset discards all data, because the server was replaced.
func (p *Pace) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = line{}
	p.estimate.Store(nil)
}

// TooLate reports whether a call with the given budget (see [Budget]) must be shed, given its estimated wait. If the estimate is too low,
// a longer wait would leave the call too little time.
func TooLate(wait, budget time.Duration) bool { return wait > budget/2 }
