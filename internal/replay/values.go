package replay

import (
	"cmp"
	"maps"
	"slices"
)

// value has the counts of a descriptor under a rule.
type value struct {
	rule, text string
	key        string
	asked      uint64 // how often it was asked about, or more
	missed     uint64 // at most so many of asked belong to a time when the descriptor was forgotten
	rejected   []uint64
}

// values knows the descriptors that are asked about most. As long as there is room it knows all of them exactly. After that it forgets those
// that were asked about least. A new descriptor may be one of them, so it begins with the highest count among these, as its possible error.
type values struct {
	room, sets int
	byKey      map[string]*value
	forgotten  uint64 // no descriptor that was forgotten was asked about more often
	key        []byte
}

func newValues(room, sets int) *values {
	return &values{room: room, sets: sets, byKey: make(map[string]*value)}
}

// find returns the value of a descriptor, and counts that it is asked about once more.
func (v *values) find(rule string, text []byte) *value {
	v.key = append(append(append(v.key[:0], rule...), 0), text...)
	known := v.byKey[string(v.key)]
	if known == nil {
		if len(v.byKey) >= v.room {
			v.forget()
		}
		known = &value{
			rule: rule, text: string(text), key: string(v.key), asked: v.forgotten, missed: v.forgotten, rejected: make([]uint64, v.sets),
		}
		v.byKey[known.key] = known
	}
	known.asked++
	return known
}

// forget drops the half that was asked about least.
func (v *values) forget() {
	all := slices.SortedFunc(maps.Values(v.byKey), func(a, b *value) int { return cmp.Or(cmp.Compare(a.asked, b.asked), cmp.Compare(a.key, b.key)) })
	for _, least := range all[:(len(all)+1)/2] {
		delete(v.byKey, least.key)
		v.forgotten = least.asked
	}
}
