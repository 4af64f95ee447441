package stats

import (
	"runtime/debug"
	"runtime/metrics"
)

// Runtime reports on Go's memory and garbage collector, under the reference's names. It is a source for
// [Registry.Source], and does not stop the world while it reads. The counts of allocated objects are those of the heap,
// without the tiny objects that the runtime packs into one block.
func Runtime() func(*Values) {
	names := []string{
		"/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes", "/memory/classes/heap/free:bytes", "/memory/classes/heap/released:bytes",
		"/memory/classes/total:bytes", "/gc/heap/objects:objects", "/gc/heap/goal:bytes", "/gc/heap/allocs:bytes", "/gc/heap/allocs:objects",
		"/gc/heap/frees:objects", "/sched/goroutines:goroutines", "/cpu/classes/gc/total:cpu-seconds", "/cpu/classes/total:cpu-seconds",
	}
	return func(v *Values) {
		samples := make([]metrics.Sample, len(names))
		for i, name := range names {
			samples[i].Name = name
		}
		metrics.Read(samples)
		read := make(map[string]float64, len(names))
		for _, s := range samples {
			switch s.Value.Kind() {
			case metrics.KindUint64:
				read[s.Name] = float64(s.Value.Uint64())
			case metrics.KindFloat64:
				read[s.Name] = s.Value.Float64()
			case metrics.KindBad, metrics.KindFloat64Histogram: // none of these
			}
		}
		tellRuntime(v, read)
	}
}

func tellRuntime(v *Values, read map[string]float64) {
	inUse := read["/memory/classes/heap/objects:bytes"] + read["/memory/classes/heap/unused:bytes"]
	idle := read["/memory/classes/heap/free:bytes"] + read["/memory/classes/heap/released:bytes"]
	v.Gauge(GoAlloc, read["/memory/classes/heap/objects:bytes"])
	v.Gauge(GoSys, read["/memory/classes/total:bytes"])
	v.Gauge(GoHeapAlloc, read["/memory/classes/heap/objects:bytes"])
	v.Gauge(GoHeapSys, inUse+idle)
	v.Gauge(GoHeapIdle, idle)
	v.Gauge(GoHeapInuse, inUse)
	v.Gauge(GoHeapReleased, read["/memory/classes/heap/released:bytes"])
	v.Gauge(GoHeapObjects, read["/gc/heap/objects:objects"])
	v.Gauge(GoNextGC, read["/gc/heap/goal:bytes"])
	v.Gauge(GoNumGoroutine, read["/sched/goroutines:goroutines"])
	if all := read["/cpu/classes/total:cpu-seconds"]; all > 0 {
		v.Gauge(GoGCCPUPercent, float64(int(100*read["/cpu/classes/gc/total:cpu-seconds"]/all)))
	}
	v.Counter(GoTotalAlloc, uint64(read["/gc/heap/allocs:bytes"]))
	v.Counter(GoMallocs, uint64(read["/gc/heap/allocs:objects"]))
	v.Counter(GoFrees, uint64(read["/gc/heap/frees:objects"]))
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	if gc.NumGC > 0 {
		v.Gauge(GoLastGC, float64(gc.LastGC.UnixNano()))
	}
	v.Counter(GoPauseTotal, uint64(gc.PauseTotal))
	v.Counter(GoNumGC, uint64(gc.NumGC))
}
