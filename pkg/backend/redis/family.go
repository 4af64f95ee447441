package redis

import (
	"fmt"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// family is a kind of state, with the number that scripts use. Only this file of the package depends on algorithms.
type family uint8

const (
	familyFixed family = iota
	familyBucket
	familyRuns
	familySlots
	familyCalendar
)

// familyOf returns the family of l's state.
func familyOf(l *engine.Limit) family {
	switch l.Algorithm.Family() {
	case engine.FamilyBucket:
		return familyBucket
	case engine.FamilyRuns:
		return familyRuns
	case engine.FamilySlots:
		return familySlots
	case engine.FamilyWindow:
		if l.Calendar != nil {
			return familyCalendar
		}
	}
	return familyFixed
}

// limit appends the description of l for the script of its family.
func (p *packed) limit(l *engine.Limit, s *scriptCodec) {
	switch of := familyOf(l); of {
	case familyFixed, familyCalendar:
		p.num(l.Hits, uint64(l.Window))
		p.flag(l.Align == engine.AlignFirst)
		p.flag(l.CountRefused)
		if of == familyCalendar {
			for _, edge := range l.Calendar.Edges(s.here()) {
				p.float(float64(edge))
			}
		}
	case familyBucket:
		p.bucket(l)
	case familyRuns:
		p.num(l.Hits, uint64(l.Window), uint64(l.Precision))
		p.flag(l.CountRefused)
	case familySlots:
		p.num(l.Hits, uint64(l.Window))
	}
}

// bucket appends the description of a bucket: its rate, den hits in us microseconds, where den is 0 if it never fills; its size; the
// maximum of consumed hits; its debt; its initial content; its fill interval; its window; and its flags.
func (p *packed) bucket(l *engine.Limit) {
	leaky := l.Algorithm == engine.LeakyBucket
	us, den := uint64(1), uint64(0)
	if l.Hits > 0 {
		us, den = l.Rate()
	}
	most, initial := l.Burst+l.Debt, l.Initial
	switch {
	case leaky:
		initial = l.Burst
	case l.CountRefused:
		most = 2 * l.Burst
	}
	p.num(us, den, l.Burst, most, l.Debt, initial, uint64(l.FillInterval), uint64(l.Window))
	p.flag(leaky)
	p.flag(l.CountRefused)
}

// kind is a kind of group, with the number that the script uses: the family of common takes of one limit, or any other operations.
type kind uint8

const (
	kindWindow = kind(familyFixed)  // common takes of fixed windows
	kindBucket = kind(familyBucket) // common takes of buckets
	kindOther  = kind(2)
)

// kindOf returns the kind of op. The bounds keep products within the exact range of a double.
func kindOf(op *backend.Op) kind {
	t := &op.Take
	if op.Mode != backend.Take || len(op.Limits) != 1 || op.Penalty != nil || op.Reserve != nil || t.Extra != 0 ||
		t.Cost == 0 || t.Count == 0 || t.Cost > math.MaxInt32 || t.Count > math.MaxInt32/t.Cost {
		return kindOther
	}
	l := &op.Limits[0]
	if l.Hits == 0 || l.Hits > math.MaxUint32 || l.Burst > math.MaxUint32 {
		return kindOther
	}
	leaky := l.Algorithm == engine.LeakyBucket
	switch familyOf(l) {
	case familyFixed:
		if l.Align == engine.AlignClock && l.Hits < uint64(l.Window) {
			return kindWindow
		}
	case familyBucket:
		if l.Debt == 0 && l.FillInterval == 0 && (leaky && t.Count == 1 || !leaky && l.Initial == l.Burst) {
			return kindBucket
		}
	case familyRuns, familySlots, familyCalendar:
	}
	return kindOther
}

// codeUndecided is the code of alone.lua's error if it has changed nothing and the general script must decide.
const codeUndecided = "UNDECIDED"

// fitsAlone reports whether alone.lua may decide an item, if it is alone in its batch: an undecided operation is resent, and would run
// after a later operation on the same key.
func fitsAlone(it *item) bool {
	t := &it.op.Take
	if it.kind != kindWindow {
		return false
	}
	l := &it.op.Limits[0]
	return t.Cost*t.Count <= l.Hits && (t.Count == 1 || l.CountRefused)
}

// decideWindow sets op.Decision, given the hits of its window consumed before. Mirrors pkg/engine/fixedwindow.go.
func decideWindow(op *backend.Op, spent, now uint64) {
	l, count := &op.Limits[0], op.Take.Count
	start, end := l.WindowAt(engine.Micros(now))
	left := l.Hits - min(spent, l.Hits)
	op.Decision = engine.Decision{
		Admitted: min(count, left/op.Take.Cost), Left: left,
		ResetAfter: micros(uint64(end) - now), Window: int64(start),
	}
	if op.Decision.Admitted < count {
		op.Decision.RetryAfter = retryFixed(l, op.Take.Cost, op.Decision.ResetAfter)
	}
}

// retryFixed returns the time until a cost rejected by a fixed window would be admitted.
func retryFixed(l *engine.Limit, cost uint64, reset time.Duration) time.Duration {
	if max(cost, 1) > l.MaxCost() {
		return engine.Never
	}
	return reset
}

// decideBucket sets op.Decision, given the hits consumed or queued before, as a numerator over us. Mirrors pkg/engine/bucket.go.
func decideBucket(op *backend.Op, found uint64) error {
	l, cost, count := &op.Limits[0], op.Take.Cost, op.Take.Count
	us, den := l.Rate()
	up := func(n, by uint64) uint64 { return (n + by - 1) / by }
	leaky, queued := l.Algorithm == engine.LeakyBucket, found/us
	if !leaky {
		queued = up(found, us)
	}
	if queued > l.Burst {
		return fmt.Errorf("a script returned that %d hits are spent of %d", queued, l.Burst)
	}
	op.Decision = engine.Decision{Admitted: count, Left: l.Burst - queued, ResetAfter: micros(up(found+cost*count*us, den))}
	if leaky {
		op.Decision.Wait = micros(up(found, den))
	}
	return nil
}

func micros(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }

// maxWeight bounds the cost of a call in Redis, in µs, and that of a batch before its last operation. Redis executes all commands
// received over one connection before it turns to the next one, and other connections should not wait longer than this.
const maxWeight = 2000

// Maximum costs of operations in Redis, in µs, measured by BenchmarkWeights with Redis 7.0 on one core of an AMD EPYC in November 2026.
// The most expensive common take is one that falls back to the rest of the script. The cost of a log or of slots grows with the number of
// records, which is at most the number of hits.
const (
	weightWindow = 10
	weightBucket = 10
	weightRuns   = 30
	weightSlots  = 30
	perRun       = 200 // hits per µs
	perSlot      = 30
	gatedTimes   = 4   // a take behind a penalty checks up to three times before it consumes
	weightHeld   = 215 // a call ends up to twenty expired reservations
	weightNamed  = 55  // and remembers them if their names may repeat
)

// weight returns the cost of op in Redis, in µs.
func weight(op *backend.Op) int {
	weight := 0
	for i := range op.Limits {
		weight += weightOf(&op.Limits[i])
	}
	if op.Penalty != nil {
		weight *= gatedTimes
	}
	if op.Reserve != nil {
		weight += weightHeld
		if op.Reserve.Repeats {
			weight += weightNamed
		}
	}
	return weight
}

// weightOf returns the cost of an operation on l in Redis, in µs.
func weightOf(l *engine.Limit) int {
	switch l.Algorithm.Family() {
	case engine.FamilyWindow:
		return weightWindow
	case engine.FamilyBucket:
		return weightBucket
	case engine.FamilyRuns:
		if l.Precision == 0 {
			return weightRuns + int(l.Hits/perRun)
		}
		return weightRuns
	case engine.FamilySlots:
	}
	return weightSlots + int(l.Hits/perSlot)
}
