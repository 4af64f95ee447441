package stats

import (
	"maps"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The names are the reference's. Values that change slowly are about those of runtime.MemStats.
func TestRuntime(t *testing.T) {
	runtime.GC()
	r := New()
	r.Source(Runtime())
	got := map[string]float64{}
	for s := range r.NewReader().Read {
		got[s.Name()] = s.Value + float64(s.N)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	want := map[string]float64{
		"alloc": float64(m.Alloc), "sys": float64(m.Sys), "heapAlloc": float64(m.HeapAlloc), "heapSys": float64(m.HeapSys), "heapIdle": float64(m.HeapIdle),
		"heapInuse": float64(m.HeapInuse), "heapReleased": float64(m.HeapReleased), "heapObjects": float64(m.HeapObjects), "nextGC": float64(m.NextGC),
		"lastGC": float64(m.LastGC), "gcCPUPercent": 100 * m.GCCPUFraction,
		"numGoroutine": float64(runtime.NumGoroutine()), "totalAlloc": float64(m.TotalAlloc),
		"mallocs": float64(m.Mallocs), "frees": float64(m.Frees), "pauseTotalNs": float64(m.PauseTotalNs), "numGC": float64(m.NumGC),
	}
	for _, name := range []string{"sys", "heapSys", "lastGC", "totalAlloc", "mallocs", "numGC", "numGoroutine"} {
		if n, v := got["ratelimit.go."+name], want[name]; n < v/4 || n > v*4 {
			t.Errorf("%s is %v, and about %v to runtime.MemStats", name, n, v)
		}
	}
	var names []string
	for name := range want {
		names = append(names, "ratelimit.go."+name)
	}
	slices.Sort(names)
	if d := cmp.Diff(names, slices.Sorted(maps.Keys(got))); d != "" {
		t.Errorf("names (-want +got):\n%s", d)
	}
}
