package replay

import (
	"cmp"
	"maps"
	"slices"
)

// value is the counts of a descriptor under a rule.
type value struct {
	rule, text string
	key        string
	requested  uint64 // number of decisions, or more
	missed     uint64 // maximum number in asked from before the descriptor was added again
	rejected   []uint64
}

// values tracks the most frequent descriptors. While there is room, it counts exactly. After that, it drops the least frequent ones. A
// new descriptor may be a dropped one, so it starts with the maximum count of dropped ones, which is also its possible error.
type values struct {
	room, sets int
	byKey      map[string]*value
	forgotten  uint64 // maximum count of a dropped descriptor
	key        []byte
}

func newValues(room, sets int) *values {
	return &values{room: room, sets: sets, byKey: make(map[string]*value)}
}

// find returns the value of a descriptor, after counting a decision.
func (v *values) find(rule string, text []byte) *value {
	v.key = append(append(append(v.key[:0], rule...), 0), text...)
	known := v.byKey[string(v.key)]
	if known == nil {
		if len(v.byKey) >= v.room {
			v.forget()
		}
		known = &value{
			rule: rule, text: string(text), key: string(v.key), requested: v.forgotten, missed: v.forgotten, rejected: make([]uint64, v.sets),
		}
		v.byKey[known.key] = known
	}
	known.requested++
	return known
}

// forget drops the least frequent half.
func (v *values) forget() {
	all := slices.SortedFunc(maps.Values(v.byKey), func(a, b *value) int { return cmp.Or(cmp.Compare(a.requested, b.requested), cmp.Compare(a.key, b.key)) })
	for _, least := range all[:(len(all)+1)/2] {
		delete(v.byKey, least.key)
		v.forgotten = least.requested
	}
}
