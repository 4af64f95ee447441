package stats

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// However often and wherever a loop ends early, each count is yielded once and none is lost.
func TestReaderTellsEachCountOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := New()
		d := r.NewReader()
		want, got := map[string]uint64{}, map[string]uint64{}
		read := func(most int) {
			for s := range d.Read {
				if s.Kind() != Gauge {
					got[s.Name()] += s.N
				}
				if most--; most == 0 {
					break
				}
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			n := rapid.Uint64Range(1, 5).Draw(t, "n")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				r.Rule(count.NewKey("d", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"))).OverLimit.Add(n)
			case 1:
				r.Rule(count.NewKey("d", "a")).TotalHits.Add(n)
			case 2:
				r.Counter(RefundErrorsTotal).Add(n)
			case 3:
				for range n {
					r.ObserveCall("m", float64(n)/1000)
				}
			}
			if most := rapid.IntRange(-3, 5).Draw(t, "most"); most > 0 {
				read(most)
			}
		}
		for s := range r.samples {
			if want[s.Name()] = s.N; s.Kind() == Timing {
				want[s.Name()] = s.histogram.GetSampleCount()
			}
		}
		read(-1)
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	})
}

func TestSpread(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cell := rapid.SliceOfN(rapid.Uint64Range(0, 50), 1, 20).Draw(t, "cells")
		most := rapid.Uint64Range(3, 30).Draw(t, "most")
		total, last := uint64(0), 0
		for i, n := range cell {
			total += n
			if n > 0 {
				last = i
			}
		}
		sum, picks, at, sizes := uint64(0), uint64(0), -1, map[uint64]bool{}
		for i, n := range spread(cell, most) {
			if i < at || cell[i] == 0 || n == 0 {
				t.Fatalf("pick %d of %d calls after %d: %v", i, n, at, cell)
			}
			at = i
			sum += n
			picks++
			sizes[n] = true
		}
		if sum != total || picks > most || total > 0 && at != last || len(sizes) > 3 {
			t.Fatalf("%d picks stand for %d calls in groups of %v, the last from cell %d; want at most %d for %d, and %d",
				picks, sum, sizes, at, most, total, last)
		}
		if total <= most && picks != total {
			t.Fatalf("%d of %d calls are picked, want all", picks, total)
		}
	})
}

func TestResponseTimesInMilliseconds(t *testing.T) {
	t.Parallel()
	r := NewMilliseconds()
	for _, v := range []float64{0.000005, 0.0009, 0.002, 0.02} {
		r.ObserveCall("m", v)
	}
	h := (*r.calls.Load())["m"].read()
	if math.Abs(h.GetSampleSum()-22.905) > 1e-9 || h.GetSampleCount() != 4 {
		t.Errorf("the sum is %v and the count %d", h.GetSampleSum(), h.GetSampleCount())
	}
	for i, want := range map[int]uint64{0: 1, 6: 1, 7: 2, 8: 3, 10: 3} { // 0.005, 0.5, 1, 2.5 and 10 ms
		if got := h.GetBucket()[i].GetCumulativeCount(); got != want {
			t.Errorf("%d calls took up to %v ms, want %d", got, h.GetBucket()[i].GetUpperBound(), want)
		}
	}
	for s := range r.NewReader().Read {
		if s.Kind() == Timing && s.Name() == "ratelimit_server.m.response_time" && s.Value > 21 {
			t.Errorf("a call of at most 20 ms is told as one of %v", s.Value)
		}
	}
}
