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
	v.Gauge("ratelimit.go.alloc", read["/memory/classes/heap/objects:bytes"])
	v.Gauge("ratelimit.go.sys", read["/memory/classes/total:bytes"])
	v.Gauge("ratelimit.go.heapAlloc", read["/memory/classes/heap/objects:bytes"])
	v.Gauge("ratelimit.go.heapSys", inUse+idle)
	v.Gauge("ratelimit.go.heapIdle", idle)
	v.Gauge("ratelimit.go.heapInuse", inUse)
	v.Gauge("ratelimit.go.heapReleased", read["/memory/classes/heap/released:bytes"])
	v.Gauge("ratelimit.go.heapObjects", read["/gc/heap/objects:objects"])
	v.Gauge("ratelimit.go.nextGC", read["/gc/heap/goal:bytes"])
	v.Gauge("ratelimit.go.numGoroutine", read["/sched/goroutines:goroutines"])
	if all := read["/cpu/classes/total:cpu-seconds"]; all > 0 {
		v.Gauge("ratelimit.go.gcCPUPercent", float64(int(100*read["/cpu/classes/gc/total:cpu-seconds"]/all)))
	}
	v.Counter("ratelimit.go.totalAlloc", uint64(read["/gc/heap/allocs:bytes"]))
	v.Counter("ratelimit.go.mallocs", uint64(read["/gc/heap/allocs:objects"]))
	v.Counter("ratelimit.go.frees", uint64(read["/gc/heap/frees:objects"]))
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	if gc.NumGC > 0 {
		v.Gauge("ratelimit.go.lastGC", float64(gc.LastGC.UnixNano()))
	}
	v.Counter("ratelimit.go.pauseTotalNs", uint64(gc.PauseTotal))
	v.Counter("ratelimit.go.numGC", uint64(gc.NumGC))
}
