package redis

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// family is a kind of state, by the number that scripts know it by. All that this package knows of algorithms is in this
// file.
type family uint8

const (
	familyFixed family = iota
	familyBucket
	familyRuns
	familySlots
	familyCalendar
)

// familyOf returns the family that keeps the state of l.
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

// limit appends l's family and the numbers that the family's script describes.
func (p *packed) limit(l *engine.Limit, s *scriptCodec) {
	kind := familyOf(l)
	p.b = append(p.b, byte(kind))
	switch kind {
	case familyFixed, familyCalendar:
		p.num(l.Hits, uint64(l.Window))
		p.flag(l.Align == engine.AlignFirst)
		p.flag(l.CountRefused)
		if kind == familyCalendar {
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

// bucket appends the numbers of a bucket: its rate, den hits in us microseconds, where den is 0 if it never fills; its
// size; how many hits can be spent at once; its debt; what it starts with; its fill interval; its window; and its
// flags.
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

// kind is a kind of group, by the number that the script knows it by.
type kind uint8

const (
	kindWindow kind = iota // common takes of fixed windows
	kindBucket             // common takes of buckets
	kindOther              // everything else
)

// shared is what the operations of a group share: a kind and, of common takes, all but the key.
type shared struct {
	kind          kind
	cost, count   uint32
	hits          uint32 // or the burst
	den           uint32
	us, window    uint64
	leaky, counts bool
}

// sharedOf returns what op shares with others. The bounds keep products within the exact range of a double.
func sharedOf(op *backend.Op) shared {
	other := shared{kind: kindOther}
	t := &op.Take
	if op.Mode != backend.Take || len(op.Limits) != 1 || op.Penalty != nil || op.Reserve != nil || t.Extra != 0 ||
		t.Cost == 0 || t.Count == 0 || t.Cost > math.MaxInt32 || t.Count > math.MaxInt32/t.Cost {
		return other
	}
	l := &op.Limits[0]
	if l.Hits == 0 || l.Hits > math.MaxUint32 || l.Burst > math.MaxUint32 {
		return other
	}
	s := shared{cost: uint32(t.Cost), count: uint32(t.Count), window: uint64(l.Window), counts: l.CountRefused}
	switch l.Algorithm.Family() {
	case engine.FamilyWindow:
		if l.Align != engine.AlignClock || l.Calendar != nil || l.Hits >= uint64(l.Window) {
			return other
		}
		s.kind, s.hits = kindWindow, uint32(l.Hits)
		return s
	case engine.FamilyBucket:
		s.leaky = l.Algorithm == engine.LeakyBucket
		if l.Debt > 0 || l.FillInterval > 0 || l.Initial < l.Burst && !s.leaky || s.leaky && t.Count != 1 {
			return other
		}
		us, den := l.Rate()
		s.kind, s.hits, s.us, s.den = kindBucket, uint32(l.Burst), us, uint32(den)
		return s
	case engine.FamilyRuns, engine.FamilySlots:
	}
	return other
}

// shared appends what the operations of a group share, as batch.lua describes it.
func (p *packed) shared(s *shared) {
	switch s.kind {
	case kindWindow:
		p.words(s.cost, s.count, s.hits)
		p.num(s.window)
		p.flag(s.counts)
	case kindBucket:
		p.words(s.cost, s.count, s.den, s.hits)
		p.num(s.us, s.window)
		p.flag(s.leaky)
		p.flag(s.counts)
	case kindOther:
	}
}

// decide fills in op.Decision from what the script found at the given time. Mirrors pkg/engine.
func (s *shared) decide(op *backend.Op, found, now uint64) error {
	cost, count := uint64(s.cost), uint64(s.count)
	micros := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	switch s.kind {
	case kindWindow:
		start := now - now%s.window
		left := uint64(s.hits) - min(found, uint64(s.hits))
		d := engine.Decision{Admitted: min(count, left/cost), Left: left, ResetAfter: micros(start + s.window - now), Window: int64(start)}
		if d.Admitted < count {
			d.RetryAfter = d.ResetAfter
		}
		op.Decision = d
		return nil
	case kindBucket:
		up := func(n, by uint64) uint64 { return (n + by - 1) / by }
		den, queued := uint64(s.den), found/s.us
		if !s.leaky {
			queued = up(found, s.us)
		}
		if queued > uint64(s.hits) {
			return fmt.Errorf("a script replied that %d hits are spent of %d", queued, s.hits)
		}
		op.Decision = engine.Decision{Admitted: count, Left: uint64(s.hits) - queued, ResetAfter: micros(up(found+cost*count*s.us, den))}
		if s.leaky {
			op.Decision.Wait = micros(up(found, den))
		}
		return nil
	case kindOther:
	}
	return errors.New("a script found something where it should have decided")
}

// maxWeight is what a call may cost Redis, in µs, and a batch too, but for its last operation: Redis carries out what it has
// received over one connection before it turns to another one, and nobody should wait for longer than that for what others ask.
const maxWeight = 2000

// What operations cost Redis at most, in µs: by BenchmarkWeights, of Redis 7.0 on one core of an AMD EPYC in November
// 2026. A common take that leaves what it asks to the rest of the script is the most expensive of its kind. That of a log
// or of slots grows with the number of records, of which there are at most as many as hits.
const (
	weightWindow = 10
	weightBucket = 10
	weightRuns   = 30
	weightSlots  = 30
	perRun       = 200 // hits to a µs
	perSlot      = 30
	gatedTimes   = 4   // a take behind a penalty looks up to three times before it spends
	weightHeld   = 215 // a call ends up to twenty reservations that have expired
)

// weight returns what op costs Redis, in µs.
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
	}
	return weight
}

// weightOf returns what an operation on l alone costs Redis, in µs.
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
