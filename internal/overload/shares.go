package overload

import (
	"sync"
	"sync/atomic"
	"time"
)

// period is how long a domain's use is remembered, once or twice.
const period = 100 * time.Millisecond

// shares knows how much of the work of late was for which domain. Domains whose numbers are equal in their last bits
// share a count.
type shares struct {
	used   [256]atomic.Int64
	total  atomic.Int64
	active atomic.Int64 // domains with any use

	mu    sync.Mutex
	until atomic.Int64 // when counts are halved next
}

// add counts work for a domain.
func (s *shares) add(now time.Duration, domain uint32, work int) {
	if int64(now) > s.until.Load() {
		s.halve(now)
	}
	n := int64(work+1) * 2 // so that a single one lives through one halving, and even one of nothing counts
	if s.used[domain%uint32(len(s.used))].Add(n) == n {
		s.active.Add(1)
	}
	s.total.Add(n)
}

// dismissing is what part of the work of a decision it takes to dismiss a call, at least.
const dismissing = 8

// dismissed counts a call that was dismissed. Else a domain would seem to use less, the more the calls are that it asks for in vain, and
// one that asks for little would be above its share.
func (s *shares) dismissed(now time.Duration, domain uint32, size int) {
	s.add(now, domain, size/dismissing)
}

// under reports whether a domain has used less than an equal share.
func (s *shares) under(domain uint32) bool {
	return s.used[domain%uint32(len(s.used))].Load()*max(2, s.active.Load()) <= s.total.Load()
}

// wellUnder reports whether a domain has used less than three quarters of an equal share, and others have used anything: of domains that
// use the same, some are always just below.
func (s *shares) wellUnder(domain uint32) bool {
	total := s.total.Load()
	return total > 0 && 4*s.used[domain%uint32(len(s.used))].Load()*max(2, s.active.Load()) <= 3*total
}

// over reports whether a domain has used more than an equal share, and others have used anything.
func (s *shares) over(domain uint32) bool { return s.several() && !s.under(domain) }

// several reports whether more than one domain has used anything.
func (s *shares) several() bool { return s.active.Load() > 1 }

// halve forgets the older half of what was counted.
func (s *shares) halve(now time.Duration) {
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	keep := int64(2) // what is left of a count, as a divisor
	if late := now - time.Duration(s.until.Load()); late > 2*period {
		keep = 1 << 30
	}
	s.until.Store(int64(now + period))
	total, active := int64(0), int64(0)
	for i := range s.used {
		if old := s.used[i].Load(); old > 0 {
			left := old / keep
			s.used[i].Add(left - old)
			total += left
			if left > 0 {
				active++
			}
		}
	}
	s.total.Store(total)
	s.active.Store(active)
}
