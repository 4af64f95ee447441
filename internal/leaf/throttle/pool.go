package throttle

// Pool is something of which there is so much for all callers together, such as memory. Make it with [NewPool]. It is not safe for
// concurrent use.
type Pool[K comparable] struct {
	most, share, used int
	taken             map[K]int
}

// NewPool returns a Pool of so much. A caller that has more than a share of it gives way to others; a share of 0, or of 1 or more, means
// that none does.
func NewPool[K comparable](most int, share float64) *Pool[K] {
	p := &Pool[K]{most: most, share: most, taken: map[K]int{}}
	if share > 0 && share < 1 {
		p.share = int(share * float64(most))
	}
	return p
}

// Taken returns how much a caller has.
func (p *Pool[K]) Taken(k K) int { return p.taken[k] }

// Used returns how much all callers have.
func (p *Pool[K]) Used() int { return p.used }

// Add adds n to what a caller has, whatever there is. It may be negative.
func (p *Pool[K]) Add(k K, n int) {
	p.used += n
	if p.taken[k] += n; p.taken[k] == 0 {
		delete(p.taken, k)
	}
}

// Take adds n to what a caller has, if there is as much. What a caller has beyond its share leaves an eighth of all to others, if there are
// any. For a caller within its share evict is called with the one that has most, until there is room or it returns false; it has to take
// something from it by [Pool.Add].
func (p *Pool[K]) Take(k K, n int, evict func(worst K) bool) bool {
	over, room := p.taken[k]+n > p.share, p.most
	if over && p.used > p.taken[k] {
		room -= p.most / 8
	}
	for p.used+n > room {
		worst := k
		for other, taken := range p.taken {
			if taken > p.taken[worst] {
				worst = other
			}
		}
		if over || p.taken[worst] <= p.share || !evict(worst) {
			return false
		}
	}
	p.Add(k, n)
	return true
}
