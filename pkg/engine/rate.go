package engine

// Rate returns l's rate in lowest terms: den hits in us microseconds, for stores that repeat the arithmetic of buckets.
// It is computed anew each time unless l comes from [Limit.Prepared]. l.Hits and l.Window must not be 0.
func (l *Limit) Rate() (us, den uint64) {
	r := l.rate()
	return r.us, r.den
}
