package memory

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

type name struct {
	key  backend.Key
	slot engine.Slot
}

// TestTableOfNames compares a table with a map. There are few hashes, so keys collide all the time.
func TestTableOfNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hashBits := rapid.SampledFrom([]uint32{0, 1, 4, 8, 12, 32}).Draw(t, "hash bits")
		hashTo := func(n name) uint32 {
			return (uint32(n.key[0])*0x9e3779b1 + uint32(n.key[1]) + uint32(n.slot)) << (32 - hashBits) >> (32 - hashBits)
		}
		table, twin := newTable(), map[name]uint16{}
		weight := uint16(0)
		insert := func(n name) {
			weight++
			e := table.insert(hashTo(n), &n.key, n.slot)
			e.weight = weight
			table.reschedule(e, engine.Micros(weight*40503))
			twin[n] = weight
		}
		names := rapid.Custom(func(t *rapid.T) name {
			var n name
			binary.BigEndian.PutUint16(n.key[:], rapid.Uint16Range(0, 300).Draw(t, "key"))
			n.slot = engine.Slot(rapid.Uint64Range(0, 2).Draw(t, "slot"))
			return n
		})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { checkTable(t, &table, twin, hashTo) },
			"toggle": func(t *rapid.T) {
				n := names.Draw(t, "name")
				if e := table.find(hashTo(n), &n.key, n.slot); e != nil {
					table.remove(e)
					delete(twin, n)
				} else {
					insert(n)
				}
			},
			"insert many": func(t *rapid.T) {
				for key := range rapid.Uint16Range(0, 300).Draw(t, "keys") {
					var n name
					binary.BigEndian.PutUint16(n.key[:], key)
					if _, there := twin[n]; !there {
						insert(n)
					}
				}
			},
			"reschedule": func(t *rapid.T) {
				if table.n > 0 {
					e := table.at(rapid.Uint32Range(0, table.n-1).Draw(t, "number"))
					table.reschedule(e, engine.Micros(rapid.Uint16().Draw(t, "due")))
				}
			},
			"remove many": func(t *rapid.T) {
				keep := rapid.Uint32Range(0, 300).Draw(t, "keep")
				for table.n > keep {
					e := table.at(table.n / 2)
					delete(twin, name{e.key, e.slot})
					table.remove(e)
				}
			},
		})
	})
}

func checkTable(t *rapid.T, table *table, twin map[name]uint16, hashTo func(name) uint32) {
	if got, want := int(table.n), len(twin); got != want {
		t.Fatalf("%d entries, want %d", got, want)
	}
	if spare := len(table.chunks)*chunkLen - int(table.n); spare < 0 || spare >= 2*chunkLen {
		t.Fatalf("%d chunks for %d entries", len(table.chunks), table.n)
	}
	if size := len(table.index); size > minPlaces && (int(table.n)*8 < size || int(table.n)*4 > size*3) {
		t.Fatalf("an index of %d for %d entries", size, table.n)
	}
	for n, weight := range twin {
		e := table.find(hashTo(n), &n.key, n.slot)
		if e == nil || e.key != n.key || e.slot != n.slot || e.weight != weight {
			t.Fatalf("%v: found %+v, want weight %d", n, e, weight)
		}
	}
	for i := range table.n {
		e := table.at(i)
		if table.at(e.rank).ranked != i || e.rank > 0 && table.at(table.at((e.rank-1)/2).ranked).due > e.due {
			t.Fatalf("entry %d of %d is at %d in the heap, where it does not belong", i, table.n, e.rank)
		}
	}
	for i := table.n; int(i) < len(table.chunks)*chunkLen; i++ {
		if e := table.at(i); e.weight != 0 || e.hash != 0 {
			t.Fatalf("place %d of %d entries still holds %+v", i, table.n, e)
		}
	}
}
