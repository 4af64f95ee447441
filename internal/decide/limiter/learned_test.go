package limiter

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func learning(percentile, least, most uint64) *descriptors.Reserve {
	return &descriptors.Reserve{Estimate: 500, Learn: descriptors.Learn{Percentile: percentile, Min: least, Max: most}}
}

// TestEstimate: an estimate is the percentile of the last 256 costs, within its bounds.
func TestEstimate(t *testing.T) {
	t.Parallel()
	hundred := make([]uint64, 100)
	for i := range hundred {
		hundred[i] = uint64(100 - i)
	}
	for _, x := range []struct {
		name string
		r    *descriptors.Reserve
		last []uint64
		want uint64
		from int
	}{
		{"nothing is known", learning(90, 1, 1000), nil, 500, 0},
		{"too little is known", learning(90, 1, 1000), hundred[:19], 500, 0},
		{"zeros do not count", learning(90, 1, 1000), make([]uint64, 300), 500, 0},
		{"enough is known", learning(90, 1, 1000), hundred[:20], 98, 20},
		{"90", learning(90, 1, 1000), hundred, 90, 100},
		{"50", learning(50, 1, 1000), hundred, 50, 100},
		{"1", learning(1, 1, 1000), hundred, 1, 100},
		{"the largest", learning(100, 1, 1000), hundred, 100, 100},
		{"min", learning(50, 70, 1000), hundred, 70, 100},
		{"max", learning(90, 1, 80), hundred, 80, 100},
		{"the last ones count", learning(100, 1, 1000), slices.Concat(hundred, slices.Repeat([]uint64{7}, 256)), 7, 256},
	} {
		c := new(costs)
		for _, cost := range x.last {
			c.add(cost)
		}
		if got, from := c.estimate(x.r); got != x.want || from != x.from {
			t.Errorf("%s: %d from %d costs, want %d from %d", x.name, got, from, x.want, x.from)
		}
	}
	var none *costs
	none.add(1)
	if got, from := none.estimate(learning(0, 0, 0)); got != 500 || from != 0 {
		t.Errorf("a constant estimate is %d, from %d costs", got, from)
	}
}

// TestCostsAgainstSorting compares with what is obviously right, after each cost of several distributions.
func TestCostsAgainstSorting(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // any will do
	for name, draw := range map[string]func() uint64{
		"few values": func() uint64 { return 1 + random.Uint64N(3) },
		"uniform":    func() uint64 { return 1 + random.Uint64N(10_000) },
		"heavy tail": func() uint64 { return 1 + uint64(1000*random.ExpFloat64()*random.ExpFloat64()) },
	} {
		c, r, all := new(costs), learning(90, 1, 1<<40), []uint64(nil)
		for range 1000 {
			cost := draw()
			c.add(cost)
			all = append(all, cost)
			last := slices.Sorted(slices.Values(all[max(0, len(all)-maxCosts):]))
			got, from := c.estimate(r)
			if from == 0 {
				continue
			}
			below := 0
			for _, l := range last {
				if l <= got {
					below++
				}
			}
			if from != len(last) || !slices.Contains(last, got) || 10*below < 9*len(last) || got > last[min(len(last)-1, len(last)*9/10)] {
				t.Fatalf("%s: %d is at most as large as %d of %d costs", name, got, below, len(last))
			}
		}
	}
}

// TestCostsConcurrently is for the race detector.
func TestCostsConcurrently(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	c, r := new(costs), learning(90, 1, 1000)
	for range 4 {
		wg.Go(func() {
			for i := range uint64(2000) {
				c.add(1 + i%100)
				if got, from := c.estimate(r); from > 0 && (got < 1 || got > 100) {
					t.Errorf("the estimate is %d", got)
				}
			}
		})
	}
	wg.Wait()
	if len(c.sorted) != maxCosts || !slices.IsSorted(c.sorted) {
		t.Errorf("%d costs are known, sorted: %t", len(c.sorted), slices.IsSorted(c.sorted))
	}
}
