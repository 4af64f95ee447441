package replay

import "container/heap"

// value is what is known of a descriptor under a rule.
type value struct {
	rule, text string
	key        string
	asked      uint64 // at most: how often it was asked about
	missed     uint64 // at most so many of asked were those of others
	rejected   []uint64
	at         int // in the heap
}

// values knows the descriptors that are asked about most: all of them exactly as long as there is room, and beyond that those
// that a Space-Saving sketch keeps (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in
// data streams"), where a new one takes the place of the least, and inherits its count as its possible error. What is rejected
// has been asked about, so a descriptor that is rejected often is known too; their rejections count from when they were known.
type values struct {
	room, sets int
	byKey      map[string]*value
	heap       []*value // is one once there is no room
	dropped    bool
	key        []byte
}

func newValues(room, sets int) *values {
	return &values{room: room, sets: sets, byKey: make(map[string]*value)}
}

// find returns what is known of a descriptor, which is asked about once more.
func (v *values) find(rule string, text []byte) *value {
	v.key = append(append(append(v.key[:0], rule...), 0), text...)
	if known := v.byKey[string(v.key)]; known != nil {
		known.asked++
		if v.dropped {
			heap.Fix((*leastAsked)(v), known.at)
		}
		return known
	}
	fresh := &value{rule: rule, text: string(text), key: string(v.key), asked: 1, rejected: make([]uint64, v.sets)}
	if len(v.heap) < v.room {
		fresh.at = len(v.heap)
		v.heap = append(v.heap, fresh)
		v.byKey[fresh.key] = fresh
		return fresh
	}
	if !v.dropped {
		v.dropped = true
		heap.Init((*leastAsked)(v))
	}
	least := v.heap[0]
	delete(v.byKey, least.key)
	fresh.missed = least.asked
	fresh.asked += least.asked
	v.heap[0], v.byKey[fresh.key] = fresh, fresh
	heap.Fix((*leastAsked)(v), 0)
	return fresh
}

// leastAsked is the heap of values as container/heap wants it. Nothing is pushed to it, or popped.
type leastAsked values

func (h *leastAsked) Len() int           { return len(h.heap) }
func (h *leastAsked) Less(i, j int) bool { return h.heap[i].asked < h.heap[j].asked }
func (h *leastAsked) Swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].at, h.heap[j].at = i, j
}
func (h *leastAsked) Push(any) {}
func (h *leastAsked) Pop() any { return nil } //nolint:ireturn // container/heap has it so
