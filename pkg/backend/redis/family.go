package redis

import (
	"math"

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

const familyCount = int(familyCalendar) + 1

// limitsFiles are the files of the script of lists and penalties, which knows all families.
const limitsFiles = "head muldiv ask fixed bucket runs slots limits penalty"

// single returns the script of one limit of the family: its name, and the files that it is made of.
func (f family) single() (name, files string) {
	switch f {
	case familyBucket:
		return "bucket", "head quick_bucket muldiv ask bucket single"
	case familyRuns:
		return "runs", "head muldiv ask runs single"
	case familySlots:
		return "slots", "head ask slots single"
	case familyFixed, familyCalendar:
	}
	return "fixed", "head quick_fixed ask fixed single"
}

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
func (p *packed) limit(l *engine.Limit, e *encoder) {
	kind := familyOf(l)
	p.b = append(p.b, byte(kind))
	switch kind {
	case familyFixed, familyCalendar:
		p.num(l.Hits, uint64(l.Window))
		p.flag(l.Align == engine.AlignFirst)
		p.flag(l.CountRefused)
		if kind == familyCalendar {
			for _, edge := range l.Calendar.Edges(e.here()) {
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

// quick writes the short form of the arguments, for the fast path of a script, if op qualifies for it, and reports
// whether it does. The bounds keep products within the exact range of a double.
func (p *packed) quick(op *backend.Op, slack uint64) bool {
	t, l := &op.Take, &op.Limits[0]
	if op.Mode != backend.Take || t.Cost == 0 || t.Cost > math.MaxInt32 || t.Extra != 0 || l.Hits == 0 || slack > math.MaxUint32 {
		return false
	}
	switch l.Algorithm.Family() {
	case engine.FamilyWindow:
		if l.Align != engine.AlignClock || l.Calendar != nil || l.Hits >= uint64(l.Window) ||
			t.Count == 0 || t.Count > math.MaxInt32/t.Cost {
			return false
		}
		p.words(t.Cost, t.Count, l.Hits, slack)
		p.num(uint64(l.Window))
		p.flag(l.CountRefused)
		return true
	case engine.FamilyBucket:
		leaky := l.Algorithm == engine.LeakyBucket
		if l.Debt > 0 || l.FillInterval > 0 || l.Initial < l.Burst && !leaky || t.Count != 1 {
			return false
		}
		us, den := l.Rate()
		p.words(t.Cost, den, l.Burst, slack)
		p.num(us, uint64(l.Window))
		p.flag(leaky)
		p.flag(l.CountRefused)
		return true
	case engine.FamilyRuns, engine.FamilySlots:
	}
	return false
}
