package engine

import (
	"math"
	"math/big"
	"testing"
	"unsafe"

	"pgregory.net/rapid"
)

func TestMuldiv(t *testing.T) {
	if quo, rem := muldiv(1<<63, 2, 1); quo != 1<<63 || rem != 0 {
		t.Errorf("2^64 by 1 is %d and %d", quo, rem)
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		c := rapid.Uint64Min(1).Draw(t, "c")
		product := new(big.Int).Mul(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
		quo, rem := new(big.Int).QuoRem(product, new(big.Int).SetUint64(c), new(big.Int))
		if !quo.IsUint64() {
			quo.SetUint64(1 << 63)
			rem.SetUint64(0)
		}
		if q, r := muldiv(a, b, c); q != quo.Uint64() || r != rem.Uint64() {
			t.Fatalf("%d·%d by %d is %d and %d, want %s and %s", a, b, c, q, r, quo, rem)
		}
		want := uint64(MaxHits)
		if product.Cmp(big.NewInt(MaxHits)) < 0 {
			want = product.Uint64()
		}
		if got := Times(a, b); got != want {
			t.Fatalf("%d·%d is %d, want %d", a, b, got, want)
		}
	})
}

// TestRange checks that a double represents every number exactly, even with the largest limits and the latest times.
func TestRange(t *testing.T) {
	for _, now := range []Micros{math.MinInt64, 0, latest, math.MaxInt64} {
		for _, l := range []Limit{
			{Algorithm: FixedWindow, Hits: MaxLimit, Window: maxWindow, CountRefused: true},
			{Algorithm: SlidingWindow, Hits: maxNumber, Window: maxWindow, Precision: 100},
			{Algorithm: SlidingLog, Hits: maxStamps, Window: maxWindow},
			{Algorithm: TokenBucket, Hits: maxNumber, Window: maxWindow, Burst: maxNumber, Debt: maxNumber},
			{Algorithm: TokenBucket, Hits: 1, Window: maxWindow, Burst: 5, CountRefused: true},
			{Algorithm: LeakyBucket, Hits: 1, Window: maxWindow, Burst: 10},
			{Algorithm: Concurrency, Hits: maxStamps, Window: maxWindow},
		} {
			if err := l.Validate(); err != nil {
				t.Fatal(err)
			}
			var s State
			for range 3 {
				d := Limits{l}.Take([]*State{&s}, now, Take{Cost: math.MaxUint64, Count: math.MaxUint64, Extra: math.MaxUint64})
				Limits{l}.Take([]*State{&s}, now, Take{Cost: max(l.Hits, l.Burst), Count: 1})
				if d.ResetAfter < 0 || d.RetryAfter < 0 || s.n > MaxHits || s.expires > MaxHits || s.at > MaxHits {
					t.Errorf("%+v at %d: %+v and %+v", l, now, d, s)
				}
			}
		}
	}
}

func TestStateIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(State{}); size > 56 {
		t.Errorf("a State has %d bytes", size)
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	for _, l := range []Limit{
		{Hits: 1000, Window: 1e6, CountRefused: true},
		{Hits: 1000, Window: 1e6, Align: AlignFirst},
		{Algorithm: TokenBucket, Hits: 999, Window: 1e6, Burst: 1000, FillInterval: 1e6},
		{Algorithm: LeakyBucket, Hits: 1000, Window: 1e6, Burst: 1000},
	} {
		limits, s, now := Limits{l}, new(State), Micros(base)
		allocs := testing.AllocsPerRun(1000, func() {
			limits.Take([]*State{s}, now, Take{Cost: 1, Count: 1})
			limits.Peek([]*State{s}, now, Take{Cost: 1, Count: 1})
			limits.Refund([]*State{s}, now, Take{Cost: 1, Count: 1})
			now += 700
		})
		if allocs > 0 {
			t.Errorf("%s allocates %v times", l.Algorithm, allocs)
		}
	}
}
