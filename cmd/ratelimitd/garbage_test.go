package main

import (
	"context"
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestHeapRoom: the more is alive, the less the heap grows, in per cent, before it is collected; the least amid garbage, and while
// more is alive than for long.
func TestHeapRoom(t *testing.T) { //nolint:paralleltest // the garbage collector is everyone's
	before := debug.SetGCPercent(gcPercent)
	ctx, end := context.WithCancel(t.Context())
	t.Cleanup(func() {
		end()
		runtime.GC()
		debug.SetGCPercent(before)
	})
	inForce := func() int {
		s := []runtimemetrics.Sample{{Name: "/gc/gogc:percent"}}
		runtimemetrics.Read(s)
		return int(s[0].Value.Uint64()) //nolint:gosec // a percentage
	}
	for _, tt := range []struct {
		live, steady uint64 // MiB
		want         int
	}{
		{0, 0, 400},
		{12, 12, 400},
		{16, 16, 300},
		{24, 24, 200},
		{1 << 20, 1 << 20, 200},
		{24, 1 << 20, 200}, // much was alive until just now
		{30, 24, 140},      // a surge begins: what grew is no reason for more
		{96, 24, 25},       // calls that wait have filled the room: as little as will do
		{1 << 10, 24, 25},
	} {
		if got := percentOf(tt.live<<20, tt.steady<<20); got != tt.want {
			t.Errorf("with %d MiB alive, %d of them for long, the heap grows by %d %%, want %d", tt.live, tt.steady, got, tt.want)
		}
	}
	c := new(collector)
	c.afterEach(ctx)
	if got := inForce(); got < longPercent {
		t.Errorf("it begins with %d %%", got)
	}
	much := make([]byte, 4*heapRoom)
	runtime.GC()
	testkit.Eventually(t, "much is alive", func() bool { return inForce() <= 100/quarter })
	testkit.Eventually(t, "it is for long", func() bool {
		runtime.GC()
		return inForce() > longPercent-longPercent/8
	})
	c.amidGarbage(true)
	if got := inForce(); got != garbagePercent {
		t.Errorf("amid garbage %d %%", got)
	}
	c.amidGarbage(false)
	if got := inForce(); got <= longPercent-longPercent/8 || got > longPercent {
		t.Errorf("after it %d %%", got)
	}
	runtime.KeepAlive(much)
	testkit.Eventually(t, "it is gone", func() bool {
		runtime.GC()
		return inForce() > nearLong
	})

	release := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 * heapRoom / longPercent * 100 / len(deep{}) {
		wg.Go(func() { wait(deep{}, release) })
	}
	testkit.Eventually(t, "much is alive on stacks", func() bool {
		runtime.GC()
		return inForce() <= nearLong
	})
	close(release)
	wg.Wait()
}

// nearLong is where a little more that is alive changes nothing any more.
const nearLong = longPercent + longPercent/8

// deep fills a stack.
type deep [32 << 10]byte

// wait waits with a full stack.
//
//go:noinline
func wait(d deep, until <-chan struct{}) byte {
	<-until
	return d[len(d)/2]
}

// Garbage is collected once after a peak, and not again as long as the server has as much to do as after that.
func TestQuiet(t *testing.T) {
	var q quiet
	for i, tt := range []struct {
		what string
		heap heapState
		want bool
		left heapState // by the collection, if one is due
	}{
		{"a server that begins", heapState{1, 16}, false, heapState{}},
		{"nothing to do", heapState{1, 16}, true, heapState{3, 16}},
		{"still nothing", heapState{3, 16}, false, heapState{}},
		{"a peak", heapState{9, 133}, false, heapState{}},
		{"which goes on", heapState{12, 120}, false, heapState{}},
		{"after it", heapState{12, 120}, true, heapState{14, 25}},
		{"quiet again", heapState{14, 25}, false, heapState{}},
		{"a collection, with about as much alive", heapState{15, 30}, false, heapState{}},
		{"after that", heapState{15, 30}, false, heapState{}},
		{"with much less", heapState{16, 10}, false, heapState{}},
		{"and then as much again", heapState{17, 25}, false, heapState{}},
		{"after that", heapState{17, 25}, true, heapState{19, 25}},
	} {
		due := q.due(tt.heap)
		if due != tt.want {
			t.Errorf("%d, %s: due is %t", i, tt.what, due)
		}
		if due {
			q.collected(tt.left)
		}
	}
}
