package main

import "testing"

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
