package xds

import (
	"math"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tt := range []struct {
		name string
		b    Backoff
		want []time.Duration
	}{
		{"defaults", Backoff{}, []time.Duration{3 * s, 10 * s, 20 * s, 40 * s, 60 * s, 60 * s}},
		{"a factor that shrinks", Backoff{Factor: 0.5}, []time.Duration{3 * s, 10 * s, 20 * s}},
		{"no number", Backoff{Factor: math.NaN()}, []time.Duration{3 * s, 10 * s, 20 * s}},
		{"threefold", Backoff{First: 1, Initial: s, Max: 5 * s, Factor: 3}, []time.Duration{minWait, s, 3 * s, 5 * s}},
		{"short", Backoff{Max: s}, []time.Duration{s, s, s}},
		{"enormous", Backoff{Initial: math.MaxInt64, Max: math.MaxInt64, Factor: math.MaxFloat64}, []time.Duration{3 * s, math.MaxInt64, math.MaxInt64}},
	} {
		for failed, want := range tt.want {
			tt.b.NoJitter = true
			if got := tt.b.wait(failed, true); got != want {
				t.Errorf("%s: wait %d is %v, want %v", tt.name, failed, got, want)
			}
			if got, short := tt.b.wait(failed, false), min(want, 10*s); got != short {
				t.Errorf("%s: without rules, wait %d is %v, want %v", tt.name, failed, got, short)
			}
			tt.b.NoJitter = false
			below := 0
			for range 200 {
				got := tt.b.wait(failed, true)
				if got < minWait || got > want {
					t.Errorf("%s: wait %d is %v, want at most %v", tt.name, failed, got, want)
				}
				if got < want/2 {
					below++
				}
			}
			if want > s/2 && (below < 40 || below > 160) { // probability 10^-17
				t.Errorf("%s: %d of 200 waits are in the lower half", tt.name, below)
			}
		}
	}
}
