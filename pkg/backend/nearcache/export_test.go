package nearcache

// SuiteCalls is the maximum length of random sequences in the suite.
const SuiteCalls = 12

// Held returns the number of leased hits: those of every lease and those queued for a refund.
func (b *Backend) Held() (sum uint64) {
	for i := range b.leases.shards {
		sh := &b.leases.shards[i]
		sh.mu.Lock()
		for _, e := range sh.hot.Values() {
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
