package shares

import "math"

// Kind says what a holder is to do with a bucket.
type Kind uint8

// What a holder is to do.
const (
	TokenBucket Kind = iota // admit by the token bucket of the assignment
	DenyAll                 // reject every request
	Abandon                 // forget the bucket; its next request subscribes again
	AllowAll                // admit every request, which only a caller of this package says
)

// String returns the name of k.
func (k Kind) String() string {
	return [...]string{"token bucket", "deny all", "abandon", "allow all"}[k]
}

// Assignment is what a holder may use, in the fields of the protocol. Every field of a token bucket is at least 1: Envoy
// has no limit for a bucket without an interval and never fills one without a fill.
type Assignment struct {
	Kind          Kind
	MaxTokens     uint32
	TokensPerFill uint32
	FillInterval  uint32 // seconds
	TTL           uint32 // seconds, from its receipt
}

const (
	hour = 3600 // seconds: the fill interval, so that any rate from one hit an hour is exact
	// Rates that do not fit into a fill of an hour have an interval of a second.
	fastestHourly = math.MaxUint32 / hour

	rounding = 1e-9 // errors of floating point
)

// tokenBucket returns the assignment of a rate in hits a second, which holds the tokens of burst seconds, and the rate
// and the burst that a client can really use, which differ by rounding.
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
