package shares

// longestStep is the maximum advance of the time between two calls. A bucket has work each second, so a longer step is due to a clock
// jump or a stalled process. Leases then last longer, which is safe.
const longestStep = 2 * second

// clock derives a time without jumps from the caller's clock: it never goes back, and advances by at most longestStep.
type clock struct{ wall, now Micros }

// read returns the bucket's time for a time of the caller's clock.
func (c *clock) read(wall Micros) Micros {
	c.now += min(max(wall-c.wall, 0), longestStep)
	c.wall = wall
	return c.now
}

// inside converts a time of the caller's clock.
func (c *clock) inside(t Micros) Micros { return t - c.wall + c.now }

// outside converts a time to the caller's clock.
func (c *clock) outside(t Micros) Micros { return t - c.now + c.wall }
