package throttle

// Pool is a bounded resource shared by callers, such as memory. Create it with [NewPool]. It is not safe for concurrent use.
type Pool[K comparable] struct {
	most, share, used int
	taken             map[K]int
}

// NewPool returns a Pool of the given size. A caller that has more than share, a part of the size, gives way to others; a share of 0, or
// of 1 or more, disables this.
func NewPool[K comparable](most int, share float64) *Pool[K] {
	p := &Pool[K]{most: most, share: most, taken: map[K]int{}}
	if share > 0 && share < 1 {
		p.share = int(share * float64(most))
	}
	return p
}

// Taken returns the amount that a caller has.
func (p *Pool[K]) Taken(k K) int { return p.taken[k] }

// Used returns the amount that all callers have.
func (p *Pool[K]) Used() int { return p.used }

// Add adds n, which may be negative, to the amount of a caller, without checking the size.
func (p *Pool[K]) Add(k K, n int) {
	p.used += n
	if p.taken[k] += n; p.taken[k] == 0 {
		delete(p.taken, k)
	}
}

// Take adds n to the amount of a caller and returns true if there is room. A caller beyond its share must leave an eighth of the pool to
// others, if there are any. For a caller within its share, Take calls evict with the caller that has the most, until there is room or
// evict returns false. evict must release part of that caller's amount with [Pool.Add].
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
