package shares

import "math"

// Kind is the action of a holder for a bucket.
type Kind uint8

// The actions.
const (
	TokenBucket Kind = iota // admit by the token bucket of the assignment
	DenyAll                 // reject every request
	Abandon                 // forget the bucket; the next request subscribes again
	AllowAll                // admit every request; set only by the caller of this package
)

// String returns the name of k.
func (k Kind) String() string {
	return [...]string{"token bucket", "deny all", "abandon", "allow all"}[k]
}

// Assignment tells a holder how to decide, in the fields of the protocol. Every field of a token bucket is at least 1: Envoy has no limit
// for a bucket without an interval, and never fills one without a fill.
type Assignment struct {
	Kind          Kind
	MaxTokens     uint32
	TokensPerFill uint32
	FillInterval  uint32 // seconds
	TTL           uint32 // seconds, from its receipt
}

const (
	hour = 3600 // fill interval in seconds; it represents any rate from one hit an hour exactly
	// Higher rates do not fit into the fill of an hour and have an interval of a second.
	fastestHourly = math.MaxUint32 / hour

	rounding = 1e-9 // floating-point error
)

// tokenBucket returns the assignment for a rate in hits per second, with the tokens of burst seconds. It also returns the rate and the
// burst that a client can really use, which differ by rounding.
func tokenBucket(rate, burst float64) (a Assignment, real use) {
	interval, fill := float64(hour), math.Floor(rate*hour+0.5)
	if rate > fastestHourly {
		interval = 1
		fill = math.Floor(rate + rounding)
	}
	fill = min(max(fill, 1), math.MaxUint32)
	most := min(max(math.Ceil(rate*burst-rounding), 1), math.MaxUint32)
	return Assignment{MaxTokens: uint32(most), TokensPerFill: uint32(fill), FillInterval: uint32(interval)}, use{rate: fill / interval, burst: most}
}
