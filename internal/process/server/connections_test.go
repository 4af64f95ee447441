package server

import "testing"

// TestBounds: all listeners together leave files for the rest.
func TestBounds(t *testing.T) {
	t.Parallel()
	for files, want := range map[int]bounds{
		64:      {grpc: 21, http: 3, debug: 2},
		256:     {grpc: 119, http: 19, debug: 9},
		1024:    {grpc: 695, http: 115, debug: 57},
		20_000:  {grpc: 10_000, http: 2487, debug: 1243},
		1 << 20: {grpc: 10_000, http: 10_000, debug: 10_000},
	} {
		if got := boundsOf(files); got != want {
			t.Errorf("%d files: %+v, want %+v", files, got, want)
		}
	}
	for share, want := range map[float64]int{0: 0, 0.25: 2500, 0.00001: 1, 1: 0, 3: 0} {
		if got := perAddress(10_000, share); got != want {
			t.Errorf("a share of %v: %d connections, want %d", share, got, want)
		}
	}
}
