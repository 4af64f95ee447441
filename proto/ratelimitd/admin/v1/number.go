package adminv1

import "math"

// Numbers of limits that exceed 32 bits have a field of their own. Clients that do not know it see the largest number of 32 bits.

// Number returns requests_per_unit.
func (x *Limit) Number() uint64 {
	return max(uint64(x.GetRequestsPerUnit()), x.GetLargeRequestsPerUnit())
}

// SetNumber sets requests_per_unit.
func (x *Limit) SetNumber(n uint64) { x.RequestsPerUnit, x.LargeRequestsPerUnit = fields(n) }

// Number returns requests_per_unit.
func (x *Override) Number() uint64 {
	return max(uint64(x.GetRequestsPerUnit()), x.GetLargeRequestsPerUnit())
}

// SetNumber sets requests_per_unit.
func (x *Override) SetNumber(n uint64) { x.RequestsPerUnit, x.LargeRequestsPerUnit = fields(n) }

// Number returns requests_per_unit, if it is set.
func (x *Tenant) Number() (n uint64, ok bool) {
	if x == nil || x.RequestsPerUnit == nil && x.LargeRequestsPerUnit == nil {
		return 0, false
	}
	return max(uint64(x.GetRequestsPerUnit()), x.GetLargeRequestsPerUnit()), true
}

// SetNumber sets requests_per_unit.
func (x *Tenant) SetNumber(n uint64) {
	small, large := fields(n)
	x.RequestsPerUnit, x.LargeRequestsPerUnit = &small, nil
	if large > 0 {
		x.LargeRequestsPerUnit = &large
	}
}

// Contradicts reports whether the two fields of requests_per_unit have different numbers.
func (x *Override) Contradicts() bool {
	return contradict(x.GetRequestsPerUnit(), x.GetLargeRequestsPerUnit())
}

// Contradicts reports whether the two fields of requests_per_unit have different numbers.
func (x *Tenant) Contradicts() bool {
	return contradict(x.GetRequestsPerUnit(), x.GetLargeRequestsPerUnit())
}

func contradict(small uint32, large uint64) bool {
	return small > 0 && large > 0 && uint64(small) != min(large, math.MaxUint32)
}

// fields returns the two fields of a number.
func fields(n uint64) (small uint32, large uint64) {
	if n <= math.MaxUint32 {
		return uint32(n), 0
	}
	return math.MaxUint32, n
}

// Balance returns the hits left of a counter or, as a negative number, those spent beyond the limit.
func (x *Counter) Balance() int64 { return int64(x.GetLeft()) - int64(x.GetOverdraft()) } //nolint:gosec // both are less than 2^53
