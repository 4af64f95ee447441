package nearcache

// Held returns how many hits are leased, by looking at every lease and at all that waits to be given back.
func (b *Backend) Held() (sum uint64) {
	for i := range b.leases.shards {
		sh := &b.leases.shards[i]
		sh.mu.Lock()
		for _, e := range sh.known.Values() {
			sum += e.now.left + e.next.left
		}
		sh.mu.Unlock()
	}
	b.leases.giveBacks.mu.Lock()
	defer b.leases.giveBacks.mu.Unlock()
	for i := range b.leases.giveBacks.queued {
		sum += b.leases.giveBacks.queued[i].grant.left
	}
	return sum
}
