package shares

// longestStep is the most by which time moves between two calls. A bucket has something to do each second, so a longer
// step is a clock that jumped or a process that stood still. Leases then last longer, which is safe.
const longestStep = 2 * second

// clock reads the caller's clock as one that does not jump: it never goes back, and forward by longestStep at most.
type clock struct{ wall, now Micros }

// read returns the time inside for a time of the caller's clock.
func (c *clock) read(wall Micros) Micros {
	c.now += min(max(wall-c.wall, 0), longestStep)
	c.wall = wall
	return c.now
}

func (c *clock) inside(t Micros) Micros  { return t - c.wall + c.now }
func (c *clock) outside(t Micros) Micros { return t - c.now + c.wall }
