package nearcache

// SuiteCalls is the longest random sequence of the suite.
const SuiteCalls = 12

// Held returns how many hits are leased, by looking at every lease and at all that waits to be refunded.
func (b *Backend) Held() (sum uint64) {
	for i := range b.leases.shards {
		sh := &b.leases.shards[i]
		sh.mu.Lock()
		for _, e := range sh.known.Values() {
			sum += e.held.left
		}
		sh.mu.Unlock()
	}
	b.leases.refunds.mu.Lock()
	defer b.leases.refunds.mu.Unlock()
	for i := range b.leases.refunds.queued {
		sum += b.leases.refunds.queued[i].grant.left
	}
	return sum
}
