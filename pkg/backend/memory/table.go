package memory

import (
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// maxUses caps the use count of an entry. A few levels suffice to tell a hot counter from one that was used twice.
const maxUses = 3

// entry is a state with its key and slot.
type entry struct {
	key    backend.Key
	slot   engine.Slot
	hash   uint32        // of key and slot
	weight uint16        // counted against the maximum
	uses   uint8         // uses since it was stored, reduced by aging; at most maxUses
	rank   uint32        // position of this entry in the heap
	ranked uint32        // number of the entry at the heap position that equals this entry's number
	due    engine.Micros // the entry expires at this time or later
	state  engine.State
}

const (
	chunkLen  = 64 // entries allocated at a time
	minPlaces = 16
)

// table finds entries by key and slot. Entries are stored densely, in chunks that never move, so growth copies nothing and iteration
// visits only live entries. A separate index uses open addressing with linear probing. It contains no pointers and is small enough for
// the processor's caches, unlike the entries. The entries also form a binary heap, with the one that is due first at the top. If an
// operation extends the life of an entry, its position in the heap does not change.
type table struct {
	index  []place // length is a power of two
	chunks []*[chunkLen]entry
	n      uint32 // number of entries
}

// place is a slot of the index. Its low bits are an entry's number plus 1, its high bits are those of the entry's hash; 0 means free.
type place uint32

const (
	numberBits = 20
	maxEntries = 1<<numberBits - 1
)

// placeOf returns the place of an entry.
func placeOf(hash, number uint32) place {
	return place(hash&^maxEntries | (number + 1))
}

// number returns the number of the entry at p, which must not be free.
func (p place) number() uint32 { return uint32(p)&maxEntries - 1 }

// may reports whether the entry at p may have the given hash.
func (p place) may(hash uint32) bool { return (uint32(p)^hash)>>numberBits == 0 }

func newTable() table { return table{index: make([]place, minPlaces)} }

// hashOf returns the hash of a key and a slot, given the hash of the key.
func hashOf(key uint32, slot engine.Slot) uint32 {
	return key ^ uint32(uint64(slot)*0x9e3779b97f4a7c15>>32)
}

// at returns the i-th entry. The pointer is valid until an entry is removed.
func (t *table) at(i uint32) *entry { return &t.chunks[i/chunkLen][i%chunkLen] }

// find returns the entry of a key and slot, or nil.
func (t *table) find(hash uint32, key *backend.Key, slot engine.Slot) *entry {
	mask := uint32(len(t.index) - 1)
	for at := hash & mask; ; at = (at + 1) & mask {
		p := t.index[at]
		if p == 0 {
			return nil
		}
		if !p.may(hash) {
			continue
		}
		if e := t.at(p.number()); e.key == *key && e.slot == slot {
			return e
		}
	}
}

// first returns the entry that is due first. The table must not be empty.
func (t *table) first() *entry { return t.at(t.at(0).ranked) }

// expired returns an entry that has expired, or nil.
func (t *table) expired(now engine.Micros) *entry {
	for t.n > 0 {
		e := t.first()
		end := e.state.Expires()
		if end <= now {
			return e
		}
		if e.due > now {
			break
		}
		t.reschedule(e, end)
	}
	return nil
}

// reschedule sets the due time of e.
func (t *table) reschedule(e *entry, due engine.Micros) {
	e.due = due
	t.sift(e.rank)
}

// sift restores the heap order after a change at a position.
func (t *table) sift(rank uint32) {
	dueAt := func(rank uint32) engine.Micros { return t.at(t.at(rank).ranked).due }
	for rank > 0 && dueAt(rank) < dueAt((rank-1)/2) {
		t.swap(rank, (rank-1)/2)
		rank = (rank - 1) / 2
	}
	for {
		least := rank
		for child := 2*rank + 1; child <= 2*rank+2 && child < t.n; child++ {
			if dueAt(child) < dueAt(least) {
				least = child
			}
		}
		if least == rank {
			return
		}
		t.swap(rank, least)
		rank = least
	}
}

// swap exchanges two positions of the heap.
func (t *table) swap(i, j uint32) {
	a, b := t.at(i), t.at(j)
	a.ranked, b.ranked = b.ranked, a.ranked
	t.at(a.ranked).rank, t.at(b.ranked).rank = i, j
}

// insert adds an entry with weight 0 and a zero state that is never due. The table must not contain the key and slot.
func (t *table) insert(hash uint32, key *backend.Key, slot engine.Slot) *entry {
	if int(t.n) == len(t.chunks)*chunkLen {
		t.chunks = append(t.chunks, new([chunkLen]entry))
	}
	if int(t.n+1)*4 > len(t.index)*3 {
		t.resize(2 * len(t.index))
	}
	e := t.at(t.n)
	*e = entry{key: *key, slot: slot, hash: hash, rank: t.n, ranked: t.n, due: math.MaxInt64}
	t.enter(t.n)
	t.n++
	return e
}

// remove removes e and moves the last entry into its place.
func (t *table) remove(e *entry) {
	t.n--
	last := t.at(t.n)
	hole := t.position(e)
	rank := e.rank
	t.swap(rank, t.n)
	if e != last {
		number, ranked := t.index[hole].number(), e.ranked
		t.index[t.position(last)] = placeOf(last.hash, number)
		*e = *last
		e.ranked = ranked
		t.at(e.rank).ranked = number
	}
	if rank < t.n {
		t.sift(rank)
	}
	t.leave(hole)
	*last = entry{}
	if spare := len(t.chunks)*chunkLen - int(t.n); spare >= 2*chunkLen {
		t.chunks[len(t.chunks)-1] = nil
		t.chunks = t.chunks[:len(t.chunks)-1]
	}
	if len(t.index) > minPlaces && int(t.n)*8 < len(t.index) {
		t.resize(len(t.index) / 2)
	}
}

// position returns the position of e in the index.
func (t *table) position(e *entry) uint32 {
	mask := uint32(len(t.index) - 1)
	for at := e.hash & mask; ; at = (at + 1) & mask {
		if p := t.index[at]; p.may(e.hash) && t.at(p.number()) == e {
			return at
		}
	}
}

// enter adds the i-th entry to the index.
func (t *table) enter(i uint32) {
	hash := t.at(i).hash
	mask := uint32(len(t.index) - 1)
	at := hash & mask
	for t.index[at] != 0 {
		at = (at + 1) & mask
	}
	t.index[at] = placeOf(hash, i)
}

// leave frees a place of the index and moves up the displaced places after it.
func (t *table) leave(at uint32) {
	mask := uint32(len(t.index) - 1)
	for next := (at + 1) & mask; t.index[next] != 0; next = (next + 1) & mask {
		home := t.at(t.index[next].number()).hash & mask
		if (next-home)&mask >= (next-at)&mask {
			t.index[at] = t.index[next]
			at = next
		}
	}
	t.index[at] = 0
}

// resize rebuilds the index with n places.
func (t *table) resize(n int) {
	t.index = make([]place, n)
	for i := range t.n {
		t.enter(i)
	}
}
