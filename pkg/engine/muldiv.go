package engine

import "math/bits"

// muldiv returns the quotient and the remainder of a·b divided by c, which must not be 0. If the quotient exceeds 64 bits, muldiv returns
// 2^63 and remainder 0; this exceeds every value that callers compare it with.
func muldiv(a, b, c uint64) (quo, rem uint64) {
	hi, lo := bits.Mul64(a, b)
	if hi == 0 {
		return lo / c, lo % c
	}
	if hi >= c {
		return 1 << 63, 0
	}
	return bits.Div64(hi, lo, c)
}

// Times returns a·b, at most [MaxHits].
func Times(a, b uint64) uint64 {
	if a == 1 {
		return min(b, MaxHits)
	}
	hi, lo := bits.Mul64(a, b)
	if hi != 0 {
		return MaxHits
	}
	return min(lo, MaxHits)
}

// gcd returns the greatest common divisor of a and b, which must not both be 0.
func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
