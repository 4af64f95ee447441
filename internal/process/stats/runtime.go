package stats

import (
	"maps"
	"runtime/debug"
	"runtime/metrics"
	"slices"
)

// Runtime reports Go's memory and garbage collector under the reference's names. It is a source for [Registry.Source],
// and does not stop the world. Counts of allocated objects exclude tiny objects that the runtime packs into one block.
func Runtime() func(*Values) {
	const (
		objects  = "/memory/classes/heap/objects:bytes"
		unused   = "/memory/classes/heap/unused:bytes"
		free     = "/memory/classes/heap/free:bytes"
		released = "/memory/classes/heap/released:bytes"
		all, gc  = "/cpu/classes/total:cpu-seconds", "/cpu/classes/gc/total:cpu-seconds"
	)
	gauges := map[Metric][]string{ // sums
		GoAlloc:        {objects},
		GoSys:          {"/memory/classes/total:bytes"},
		GoHeapAlloc:    {objects},
		GoHeapSys:      {objects, unused, free, released},
		GoHeapIdle:     {free, released},
		GoHeapInuse:    {objects, unused},
		GoHeapReleased: {released},
		GoHeapObjects:  {"/gc/heap/objects:objects"},
		GoNextGC:       {"/gc/heap/goal:bytes"},
		GoNumGoroutine: {"/sched/goroutines:goroutines"},
	}
	counters := map[Metric]string{GoTotalAlloc: "/gc/heap/allocs:bytes", GoMallocs: "/gc/heap/allocs:objects", GoFrees: "/gc/heap/frees:objects"}
	names := slices.Concat([]string{all, gc}, slices.Concat(slices.Collect(maps.Values(gauges))...), slices.Collect(maps.Values(counters)))
	return func(v *Values) {
		now := readRuntime(names)
		for m, names := range gauges {
			sum := 0.0
			for _, name := range names {
				sum += now[name]
			}
			v.Gauge(m, sum)
		}
		for m, name := range counters {
			v.Counter(m, uint64(now[name]))
		}
		if now[all] > 0 {
			v.Gauge(GoGCCPUPercent, float64(int(100*now[gc]/now[all])))
		}
		var last debug.GCStats
		if debug.ReadGCStats(&last); last.NumGC > 0 {
			v.Gauge(GoLastGC, float64(last.LastGC.UnixNano()))
		}
		v.Counter(GoPauseTotal, uint64(last.PauseTotal))
		v.Counter(GoNumGC, uint64(last.NumGC))
	}
}

// readRuntime reads metrics of the runtime at one time. Unsupported ones are absent.
func readRuntime(names []string) map[string]float64 {
	samples := make([]metrics.Sample, len(names))
	for i, name := range names {
		samples[i].Name = name
	}
	metrics.Read(samples)
	read := make(map[string]float64, len(names))
	for _, s := range samples {
		if k := s.Value.Kind(); k == metrics.KindUint64 {
			read[s.Name] = float64(s.Value.Uint64())
		} else if k == metrics.KindFloat64 {
			read[s.Name] = s.Value.Float64()
		}
	}
	return read
}
