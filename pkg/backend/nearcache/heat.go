package nearcache

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// heat tells which keys are asked for often, in a table whose size does not depend on how many there are. Each key may
// count in one of two places. A place belongs to one key at a time; others that come there wear its count down, and take it
// over when nothing is left or when its key has not come for a while. So a key that comes once costs nothing but one of
// somebody's count, and two keys that are hot share no place unless they meet twice.
type heat struct{ places []place }

// place counts one key.
type place struct {
	print  uint32 // of the key
	tick   uint32 // in which it came last
	now    uint16 // how often in that tick
	before uint16 // how often in the one before
}

const (
	tick     = 1 << 17 // µs: 131 ms
	maxCount = 1<<16 - 1
)

// newHeat makes a table of so many places, a power of two.
func newHeat(places int) heat { return heat{make([]place, places)} }

// touch counts a key, and tells how often it came in this tick and the one before.
func (h heat) touch(hash uint64, at engine.Micros) int {
	now, print := uint32(at/tick), uint32(hash>>32)
	mask := uint64(len(h.places) - 1)
	a, b := &h.places[hash>>8&mask], &h.places[hash>>20&mask]
	switch {
	case a.print == print && a.now > 0:
	case b.print == print && b.now > 0:
		a = b
	case a.free(now):
		*a = place{print: print, tick: now}
	case b.free(now):
		*b = place{print: print, tick: now}
		a = b
	default:
		a.now--
		return 0
	}
	return a.count(now)
}

// free reports whether nobody counts in p any more.
func (p *place) free(now uint32) bool { return p.now == 0 || now-p.tick > 1 }

func (p *place) count(now uint32) int {
	switch now - p.tick {
	case 0:
	case 1:
		p.before, p.now = p.now, 0
	default:
		p.before, p.now = 0, 0
	}
	p.tick = now
	if p.now < maxCount {
		p.now++
	}
	return int(p.now) + int(p.before)
}
