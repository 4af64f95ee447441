package shares_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

// TestHostileRows checks that the division ends and never exceeds the rate, for any row of another replica.
func TestHostileRows(t *testing.T) {
	t.Parallel()
	numbers := []float64{0, 1e-300, 1, 1e9, 1e15}
	for i := range 2 * 5 * 5 * 5 * 5 * 5 {
		mode := shares.Mode(i % 2)
		i /= 2
		pick := func() float64 {
			x := numbers[i%5]
			i /= 5
			return x
		}
		row := shares.Row{Replica: "other", Reserved: 1e15}
		row.Claim = shares.Claim{Demand: pick(), Weight: pick(), Satisfied: pick(), Open: pick(), Fresh: pick()}
		now := 600 * second
		row.Life, row.Until = 7*second, now+7*second
		b := shares.New(shares.Config{Limit: shares.Limit{Hits: 10, Window: second, Burst: 300, Overdraft: mode == shares.Fast}, Mode: mode, Replica: "mine"}, now)
		b.Report(now, shares.Client{ID: "a", Weight: 1}, shares.Usage{})
		for range 5 {
			now = b.Next()
			if a, ok := b.Request(now); ok {
				a.Row.Until = now + a.Row.Life
				b.Answer(now, shares.Answer{Granted: a.Hits, Left: 100, Rows: []shares.Row{row, a.Row}})
			}
			b.Actions(now)
		}
		if s := b.Status(); !(s.Part >= 0 && s.Part <= 1.1*s.Capacity) {
			t.Errorf("mode %d, %+v: a part of %v of %v", mode, row.Claim, s.Part, s.Capacity)
		}
	}
}
