package nearcache

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// heat finds the keys that are asked for often, with a table whose size does not depend on the number of keys. Each key
// may be counted in either of two places. A place belongs to one key at a time; other keys that hit it wear its count
// down, and take it over once nothing is left or its key has not come for a while. So a key that comes once at most
// takes one off another key's count, and two hot keys compete only if both of their places coincide.
type heat struct{ places []place }

// place counts one key.
type place struct {
	print  uint32 // fingerprint of the key
	tick   uint32 // in which the key last came
	now    uint16 // how often in that tick
	before uint16 // how often in the tick before
}

const (
	tick     = 1 << 17 // µs: 131 ms
	maxCount = 1<<16 - 1
)

// newHeat returns a table with that many places, which must be a power of two.
func newHeat(places int) heat { return heat{make([]place, places)} }

// touch counts a key, and returns how often it came in this tick and the one before.
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

// free reports whether p no longer belongs to a key.
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
