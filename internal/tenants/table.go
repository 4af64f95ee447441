package tenants

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// shards is how many parts a table has, each with a lock.
const shards = 256

// maxPlans is how many names of plans a table knows apart; tenants on further ones are on one without a name, which no
// rule has.
const maxPlans = 4096

// table is the tenants of one source. Any number of goroutines may look tenants up while one changes them. It has no
// pointers beside those to its parts, so that the garbage collector does not look at tenants, and takes 25 to 35 bytes
// beside the name for each.
type table struct {
	seed   maphash.Seed
	shards [shards]shard

	writing sync.Mutex
	plans   atomic.Pointer[[]string] // by number; the first one is that without a name
	numbers map[string]uint16
	tenants []int // by number of the plan
}

// shard is an open-addressing table of records, which lie in data one after the other: until, as seconds since the epoch or
// 0; requests; number of the plan; 1 if numbered; length of the name; name.
type shard struct {
	mu    sync.RWMutex
	slots []uint64 // hash and place + 1 of a record; 0 if free
	live  int
	data  []byte
	dead  int // bytes of data that belong to no tenant any more
}

// recordHead is how many bytes of a record are not the name.
const recordHead = 8 + 4 + 2 + 1 + 2

func newTable(seed maphash.Seed) *table {
	t := &table{seed: seed, numbers: map[string]uint16{"": 0}, tenants: []int{0}}
	t.plans.Store(&[]string{""})
	return t
}

// find returns the entry of a tenant. A nil table has none.
func (t *table) find(name []byte) (e Entry, ok bool) {
	if t == nil {
		return e, false
	}
	h := maphash.Bytes(t.seed, name)
	s := &t.shards[h%shards]
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, at := s.look(uint32(h>>32), name)
	if at < 0 {
		return e, false
	}
	return t.entry(s.data[at:]), true
}

// entry reads a record.
func (t *table) entry(record []byte) (e Entry) {
	if until := int64(binary.LittleEndian.Uint64(record)); until != 0 {
		e.Until = time.Unix(until, 0)
	}
	e.Requests = binary.LittleEndian.Uint32(record[8:])
	e.Plan = (*t.plans.Load())[binary.LittleEndian.Uint16(record[12:])]
	e.Numbered = record[14] == 1
	return e
}

// look returns the slot of a name, and the place of its record or, if it is not there, −1.
func (s *shard) look(hash uint32, name []byte) (slot, at int) {
	mask := len(s.slots) - 1
	if mask < 0 {
		return 0, -1
	}
	for i := int(hash) & mask; ; i = (i + 1) & mask {
		v := s.slots[i]
		if v == 0 {
			return i, -1
		}
		if uint32(v>>32) != hash {
			continue
		}
		place := int(uint32(v)) - 1
		if string(nameOf(s.data[place:])) == string(name) {
			return i, place
		}
	}
}

func nameOf(record []byte) []byte {
	n := int(binary.LittleEndian.Uint16(record[15:]))
	return record[recordHead : recordHead+n]
}

// number returns the number of a plan. t.writing is held.
func (t *table) number(plan []byte) uint16 {
	if n, ok := t.numbers[string(plan)]; ok {
		return n
	}
	names := *t.plans.Load()
	if len(names) == maxPlans {
		return 0
	}
	more := append(slices.Clone(names), string(plan))
	t.plans.Store(&more)
	t.numbers[string(plan)] = uint16(len(names))
	t.tenants = append(t.tenants, 0)
	return uint16(len(names))
}

// raw is an entry before its plan has a number.
type raw struct {
	plan     []byte
	requests uint32
	numbered bool
	until    int64 // in seconds since the epoch; 0 if there is no end
}

// set gives a tenant an entry, and reports whether it had one before.
func (t *table) set(name []byte, e *raw) (had bool) {
	t.writing.Lock()
	defer t.writing.Unlock()
	var head [recordHead]byte
	number := t.number(e.plan)
	binary.LittleEndian.PutUint64(head[:], uint64(e.until))
	binary.LittleEndian.PutUint32(head[8:], e.requests)
	binary.LittleEndian.PutUint16(head[12:], number)
	if e.numbered {
		head[14] = 1
	}
	binary.LittleEndian.PutUint16(head[15:], uint16(len(name)))
	h := maphash.Bytes(t.seed, name)
	s := &t.shards[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, at := s.look(uint32(h>>32), name)
	t.tenants[number]++
	if at >= 0 {
		t.tenants[binary.LittleEndian.Uint16(s.data[at+12:])]--
		copy(s.data[at:], head[:])
		return true
	}
	if 8*(s.live+1) > 7*len(s.slots) {
		s.grow()
		slot, _ = s.look(uint32(h>>32), name)
	}
	s.live++
	s.slots[slot] = h>>32<<32 | uint64(len(s.data)+1)
	s.data = append(append(s.data, head[:]...), name...)
	return false
}

func (s *shard) grow() {
	old := s.slots
	s.slots = make([]uint64, max(8, 2*len(old)))
	for _, v := range old {
		if v != 0 {
			s.insert(v)
		}
	}
}

// insert puts the slot of a name that is not there in its place.
func (s *shard) insert(v uint64) {
	mask := len(s.slots) - 1
	i := int(v>>32) & mask
	for s.slots[i] != 0 {
		i = (i + 1) & mask
	}
	s.slots[i] = v
}

// unset forgets a tenant, and reports whether it was there.
func (t *table) unset(name []byte) bool {
	t.writing.Lock()
	defer t.writing.Unlock()
	h := maphash.Bytes(t.seed, name)
	s := &t.shards[h%shards]
	s.mu.Lock()
	defer s.mu.Unlock()
	slot, at := s.look(uint32(h>>32), name)
	if at < 0 {
		return false
	}
	t.tenants[binary.LittleEndian.Uint16(s.data[at+12:])]--
	s.live--
	s.dead += recordHead + len(name)
	s.vacate(slot)
	if s.dead > len(s.data)/2 && s.dead > 4096 {
		s.pack()
	}
	return true
}

// vacate frees a slot, and moves those behind it that would not be found any more.
func (s *shard) vacate(slot int) {
	mask := len(s.slots) - 1
	for i := (slot + 1) & mask; s.slots[i] != 0; i = (i + 1) & mask {
		home := int(s.slots[i]>>32) & mask
		if (i-home)&mask >= (i-slot)&mask {
			s.slots[slot] = s.slots[i]
			slot = i
		}
	}
	s.slots[slot] = 0
}

// pack moves the records together, into as much memory as they need.
func (s *shard) pack() {
	data := make([]byte, 0, len(s.data)-s.dead)
	for i, v := range s.slots {
		if v == 0 {
			continue
		}
		record := s.data[int(uint32(v))-1:]
		s.slots[i] = v>>32<<32 | uint64(len(data)+1)
		data = append(data, record[:recordHead+len(nameOf(record))]...)
	}
	s.data, s.dead = data, 0
}

// settle gives back the memory that a table which has been filled does not need.
func (t *table) settle() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.pack()
		s.mu.Unlock()
	}
}

// len returns how many tenants there are.
func (t *table) len() (n int) {
	if t == nil {
		return 0
	}
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.RLock()
		n += s.live
		s.mu.RUnlock()
	}
	return n
}

// count is how many tenants are on a plan.
type count struct {
	plan    string
	tenants int
}

func (t *table) counts() (all []count) {
	if t == nil {
		return nil
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	for i, name := range *t.plans.Load() {
		all = append(all, count{name, t.tenants[i]})
	}
	return all
}

// listed is a tenant, and the hash of its name.
type listed struct {
	hash uint64
	name string
	Entry
}

// list returns the tenants of a shard, sorted by the hashes of their names.
func (t *table) list(shard int) (all []listed) {
	if t == nil {
		return nil
	}
	t.each(shard, func(name string, e Entry) { all = append(all, listed{maphash.String(t.seed, name), name, e}) })
	slices.SortFunc(all, func(a, b listed) int { return cmp.Compare(a.hash, b.hash) })
	return all
}

// each calls f for the tenants of a shard, in no particular order, without holding a lock meanwhile.
func (t *table) each(shard int, f func(name string, e Entry)) {
	s := &t.shards[shard]
	s.mu.RLock()
	data := make([][]byte, 0, s.live)
	for _, v := range s.slots {
		if v != 0 {
			record := s.data[int(uint32(v))-1:]
			data = append(data, slices.Clone(record[:recordHead+len(nameOf(record))]))
		}
	}
	s.mu.RUnlock()
	for _, record := range data {
		f(string(nameOf(record)), t.entry(record))
	}
}
