package nearcache

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// hotKeys finds the keys that are asked for often, with a table whose size does not depend on the number of keys. Each key
// may be counted by either of two counters. A counter belongs to one key at a time; other keys that hit it wear its count
// down, and take it over once nothing is left or its key has not come for a while. So a key that comes once at most
// takes one off another key's count, and two hot keys compete only if both of their counters coincide.
type hotKeys struct{ counters []keyCounter }

// keyCounter counts one key.
type keyCounter struct {
	fingerprint uint32 // of the key
	tick        uint32 // in which the key last came
	now         uint16 // how often in that tick
	before      uint16 // how often in the tick before
}

const (
	tick     = 1 << 17 // µs: 131 ms
	maxCount = 1<<16 - 1
)

// newHotKeys returns a table with that many counters, which must be a power of two.
func newHotKeys(counters int) hotKeys { return hotKeys{make([]keyCounter, counters)} }

// count counts a key, and returns how often it came in this tick and the one before.
func (h hotKeys) count(hash uint64, at engine.Micros) int {
	now, fingerprint := uint32(at/tick), uint32(hash>>32)
	mask := uint64(len(h.counters) - 1)
	a, b := &h.counters[hash>>8&mask], &h.counters[hash>>20&mask]
	switch {
	case a.fingerprint == fingerprint && a.now > 0:
	case b.fingerprint == fingerprint && b.now > 0:
		a = b
	case a.free(now):
		*a = keyCounter{fingerprint: fingerprint, tick: now}
	case b.free(now):
		*b = keyCounter{fingerprint: fingerprint, tick: now}
		a = b
	default:
		a.now--
		return 0
	}
	return a.add(now)
}

// free reports whether c no longer belongs to a key.
func (c *keyCounter) free(now uint32) bool { return c.now == 0 || now-c.tick > 1 }

// add counts the key once more, and returns how often it came in this tick and the one before.
func (c *keyCounter) add(now uint32) int {
	switch now - c.tick {
	case 0:
	case 1:
		c.before, c.now = c.now, 0
	default:
		c.before, c.now = 0, 0
	}
	c.tick = now
	if c.now < maxCount {
		c.now++
	}
	return int(c.now) + int(c.before)
}
