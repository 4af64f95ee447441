package main

import (
	"context"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// gcPercent replaces Go's default of 100, unless GOGC says otherwise. Small requests produce mostly garbage, so the
// collector's share of the CPU falls as this number rises: with 100,000 keys in memory a request took 12.9 µs with 100
// and 10.5 to 12.4 µs with 400, alternating under the same load; 800 gained nothing more. The price is a heap of up to
// five times the live data, to which Go adds stacks and globals.
const gcPercent = 400

// longPercent replaces it where so much is alive for long that the heap grows by more than heapRoom: with a million counters.
// There 400 spares no more than a tenth of the CPU, and costs a hundred megabytes and more.
const (
	longPercent = 200
	heapRoom    = 48 << 20
)

// Thousands of calls that wait in the first moment of a surge are no reason to let the heap grow to three times that; this
// much, or a quarter, is enough for a moment. So what counts as alive for long grows by an eighth at most with each collection,
// and the next one that finds less takes it down at once.
const (
	surgeRoom = 24 << 20
	quarter   = 4
	eighth    = 8
)

// garbagePercent is used in a flood of shed calls, and for large bodies, which would fill a heap of five times the live
// data at once.
const garbagePercent = 50

// collector tells the garbage collector what Go cannot know.
type collector struct {
	past atomic.Bool // much garbage is over, and nothing has been collected for that since

	mu      sync.Mutex
	amid    bool   // much garbage
	steady  uint64 // bytes that are alive for long
	percent int    // what is in force
}

// amidGarbage has the garbage collector keep the heap small for as long as it is on.
func (c *collector) amidGarbage(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.amid = on
	c.set(percentOf(liveBytes(), c.steady))
	if !on {
		c.past.Store(true)
	}
}

// afterEach sets how much the heap may grow after each collection, until ctx ends.
func (c *collector) afterEach(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	live := liveBytes()
	c.mu.Lock()
	c.steady = min(max(c.steady+c.steady/eighth, heapRoom*100/longPercent), live)
	c.set(percentOf(live, c.steady))
	c.mu.Unlock()
	runtime.AddCleanup(new([16]*byte), c.afterEach, ctx) // nothing refers to it, so a collection finds it soon
}

// set sets percent, and no more than garbagePercent while there is much garbage, if that is far from what is in force.
func (c *collector) set(percent int) {
	if c.amid {
		percent = min(percent, garbagePercent)
	}
	if diff := percent - c.percent; diff > percent/8 || diff < -percent/8 {
		c.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf returns by how many per cent of the bytes that are alive the heap may grow, if steady ones are for long.
func percentOf(live, steady uint64) int {
	steady = min(steady, live)
	goal := max(steady+max(heapRoom, steady*longPercent/100), live+max(surgeRoom, live/quarter))
	return int(min((goal-live)*100/max(live, 1), gcPercent)) //nolint:gosec // at most gcPercent
}

// liveBytes returns how many bytes the last collection found alive, of which the heap may grow by some per cent: in the heap, on
// stacks and in globals. In a surge each call that waits has a stack.
func liveBytes() (all uint64) {
	s := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}
	runtimemetrics.Read(s)
	for _, one := range s {
		all += one.Value.Uint64()
	}
	return all
}

// quietLook is how often [collector.whenQuiet] looks.
const quietLook = 5 * time.Second

// whenQuiet collects garbage once it is quiet after a peak, until ctx ends. What a collection amid a peak finds alive lets the
// heap grow by that much and more, and a server that has little to do afterwards would not get there, and so not collect and
// not give memory back, for two minutes. Under a load that collects by itself this does nothing.
func (c *collector) whenQuiet(ctx context.Context) {
	ticker := time.NewTicker(quietLook)
	defer ticker.Stop()
	var q quiet
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if c.past.Swap(false) {
			q.lowest = 0
		}
		if q.due(readHeap()) {
			runtime.GC()
			runtime.GC() // what pools hold lives through one
			q.collected(readHeap())
		}
	}
}

// heapState is how many collections there were, and up to which size the heap may grow before the next one, in bytes.
type heapState struct{ collections, goal uint64 }

func readHeap() heapState {
	s := []runtimemetrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/goal:bytes"}}
	runtimemetrics.Read(s)
	return heapState{s[0].Value.Uint64(), s[1].Value.Uint64()}
}

// quiet knows what the heap was like when it was last looked at.
type quiet struct {
	last   uint64 // collections
	lowest uint64 // the lowest goal since a collection that was due; that one's, if there was none lower
}

// due reports whether a collection would help: there was none since the last look, and the last one left the heap more room
// than it has had in quiet times.
func (q *quiet) due(h heapState) bool {
	q.lowest = min(q.lowest, h.goal)
	still := h.collections == q.last
	q.last = h.collections
	return still && h.goal > q.lowest+q.lowest/4
}

// collected takes down what a collection that was due has left.
func (q *quiet) collected(h heapState) { q.last, q.lowest = h.collections, h.goal }
