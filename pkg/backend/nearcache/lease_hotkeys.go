package nearcache

import "github.com/ratelimitd/ratelimitd/pkg/engine"

// hotKeys finds frequent keys, with a table whose size does not depend on the number of keys. Each key may use either of two counters. A
// counter belongs to one key at a time. Other keys that hit it decrement the count, and take over the counter when the count is 0 or its
// key has been absent for a while. So a key that comes once reduces another key's count by at most one, and two hot keys compete only if
// both of their counters coincide.
type hotKeys struct{ counters []keyCounter }

// keyCounter counts one key.
type keyCounter struct {
	fingerprint uint32 // of the key
	tick        uint32 // tick of the key's last take
	now         uint16 // takes in that tick
	before      uint16 // takes in the tick before
}

const (
	tick     = 1 << 17 // µs: 131 ms
	maxCount = 1<<16 - 1
)

// newHotKeys returns a table with the given number of counters, a power of two.
func newHotKeys(counters int) hotKeys { return hotKeys{make([]keyCounter, counters)} }

// count counts a key, and returns its number of takes in this tick and the previous one.
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

// free reports whether c belongs to no key.
func (c *keyCounter) free(now uint32) bool { return c.now == 0 || now-c.tick > 1 }

// add increments c, and returns the number of takes in this tick and the previous one.
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
