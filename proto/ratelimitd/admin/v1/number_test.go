package adminv1_test

import (
	"math"
	"testing"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestContradicts: one number in both fields, or in one of them, contradicts nothing.
func TestContradicts(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		small uint32
		large uint64
		want  bool
	}{
		{0, 0, false},
		{5, 0, false},
		{0, 30_000_000_000, false},
		{math.MaxUint32, 30_000_000_000, false},
		{5, 5, false},
		{5, 30_000_000_000, true},
		{math.MaxUint32, 5, true},
	} {
		if got := (&adminv1.Tenant{RequestsPerUnit: &tt.small, LargeRequestsPerUnit: &tt.large}).Contradicts(); got != tt.want {
			t.Errorf("a tenant with %d and %d contradicts itself: %t, want %t", tt.small, tt.large, got, tt.want)
		}
		if got := (&adminv1.Override{RequestsPerUnit: tt.small, LargeRequestsPerUnit: tt.large}).Contradicts(); got != tt.want {
			t.Errorf("an override with %d and %d contradicts itself: %t, want %t", tt.small, tt.large, got, tt.want)
		}
	}
}
