package replay

import "container/heap"

// value has the counts of a descriptor under a rule.
type value struct {
	rule, text string
	key        string
	asked      uint64 // how often it was asked about, or more
	missed     uint64 // at most so many of asked belong to other descriptors
	rejected   []uint64
	at         int // in the heap
}

// values knows the descriptors that are asked about most. As long as there is room it knows all of them exactly. Beyond that it is
// a Space-Saving sketch (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements in data streams"): a
// new descriptor takes the place of the least, and inherits its count as its possible error. A rejected descriptor was asked about,
// so one that is rejected often is known too; its rejections count from when it was known.
type values struct {
	room, sets int
	byKey      map[string]*value
	heap       []*value // ordered as a heap once there is no room
	dropped    bool
	key        []byte
}

func newValues(room, sets int) *values {
	return &values{room: room, sets: sets, byKey: make(map[string]*value)}
}

// find returns the value of a descriptor, and counts that it is asked about once more.
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
