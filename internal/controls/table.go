package controls

import (
	"hash/maphash"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Table finds the controls of a descriptor. It is immutable.
type Table struct {
	seed    maphash.Seed
	domains map[string]*domain
	counts  [kinds]int
	numbers []*Control // the first limits
}

// domain has the controls of one domain.
type domain struct {
	whole   *slot            // of controls without entries; nil if there are none
	slots   map[uint64]*slot // by the hash of their entries
	deepest int              // the most entries that a control has
}

// slot has the controls with the same entries.
type slot struct {
	entries []Entry
	exact   []*Control // for the descriptor that has these entries and no others, those with Below among them
	below   []*Control // for those that have more
	next    *slot      // another one with the same hash
}

// newTable returns a table of controls, or nil if there are none.
func newTable(all []*Control) *Table {
	if len(all) == 0 {
		return nil
	}
	t := &Table{seed: maphash.MakeSeed(), domains: make(map[string]*domain)}
	for _, c := range all {
		t.add(c)
		if t.counts[c.Kind]++; c.Kind == Limit && len(t.numbers) < MaxNumbers {
			t.numbers = append(t.numbers, c)
		}
	}
	for _, d := range t.domains {
		d.settle()
	}
	return t
}

// add adds c to its slot, unsorted: to below if it is for those too, and to exact if not.
func (t *Table) add(c *Control) {
	d := t.domains[c.Domain]
	if d == nil {
		d = &domain{slots: make(map[uint64]*slot)}
		t.domains[c.Domain] = d
	}
	d.deepest = max(d.deepest, len(c.Entries))
	s := t.slot(d, c.Entries)
	if c.Below {
		s.below = append(s.below, c)
	} else {
		s.exact = append(s.exact, c)
	}
}

// slot returns the slot of entries, which is made if there is none yet.
func (t *Table) slot(d *domain, entries []Entry) *slot {
	if len(entries) == 0 {
		if d.whole == nil {
			d.whole = new(slot)
		}
		return d.whole
	}
	var h uint64
	for _, e := range entries {
		h = mix(h, maphash.String(t.seed, e.Key), maphash.String(t.seed, e.Value))
	}
	first := d.slots[h]
	for s := first; s != nil; s = s.next {
		if slices.Equal(s.entries, entries) {
			return s
		}
	}
	s := &slot{entries: entries, next: first}
	d.slots[h] = s
	return s
}

// settle leaves in each slot what decides.
func (d *domain) settle() {
	if d.whole != nil {
		d.whole.settle()
	}
	for _, s := range d.slots {
		for ; s != nil; s = s.next {
			s.settle()
		}
	}
}

func (s *slot) settle() {
	later := func(a, b *Control) int { return b.Since.Compare(a.Since) }
	slices.SortStableFunc(s.exact, later)
	slices.SortStableFunc(s.below, later)
	s.exact, s.below = strongest(slices.Concat(s.exact, s.below)), strongest(s.below)
}

// strongest returns those among all, which are of one slot, that decide: the first block, or else the first allow, or else
// for each limit that is named the first that names it.
func strongest(all []*Control) []*Control {
	for _, k := range []Kind{Block, Allow} {
		if i := slices.IndexFunc(all, func(c *Control) bool { return c.Kind == k }); i >= 0 {
			return all[i : i+1 : i+1]
		}
	}
	var out []*Control
	for _, c := range all {
		if !slices.ContainsFunc(out, func(o *Control) bool { return o.LimitName == c.LimitName }) {
			out = append(out, c)
		}
	}
	return out
}

// Find returns the controls that decide on a descriptor: a block, an allow, or one or more limits of different names; nil if
// there are none. The longest match decides, and of those of one length a block goes before an allow, and that before limits;
// of two of one kind the one without Below goes first, and then the later one. Find does not allocate.
func (t *Table) Find(name []byte, entries []descriptors.Entry) []*Control {
	return t.FindShorter(name, entries, len(entries)+1)
}

// FindShorter returns what Find would if there were no controls with as many entries as than or more. It does not allocate.
func (t *Table) FindShorter(name []byte, entries []descriptors.Entry, than int) []*Control {
	d := t.domains[string(name)]
	if d == nil || than < 1 {
		return nil
	}
	var found []*Control
	if d.whole != nil {
		found = d.whole.of(0, len(entries))
	}
	var h uint64
	for i := range entries[:min(len(entries), d.deepest, than-1)] {
		h = mix(h, maphash.Bytes(t.seed, entries[i].Key), maphash.Bytes(t.seed, entries[i].Value))
		for s := d.slots[h]; s != nil; s = s.next {
			if s.is(entries[:i+1]) {
				if f := s.of(i+1, len(entries)); f != nil {
					found = f
				}
				break
			}
		}
	}
	return found
}

// of returns what s, whose length is given, has for a descriptor of a length.
func (s *slot) of(own, length int) []*Control {
	if own == length {
		return s.exact
	}
	return s.below
}

func (s *slot) is(entries []descriptors.Entry) bool {
	for i := range entries {
		if string(entries[i].Key) != s.entries[i].Key || string(entries[i].Value) != s.entries[i].Value {
			return false
		}
	}
	return len(entries) == len(s.entries)
}

// mix returns the hash of a path whose last entry is hashed by key and value.
func mix(path, key, value uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	path = (path ^ key) * odd
	return (path>>32 ^ path ^ value) * odd
}

// Numbers returns the first limits, [MaxNumbers] at most. A nil table has none.
func (t *Table) Numbers() []*Control {
	if t == nil {
		return nil
	}
	return t.numbers
}

// Count returns how many controls of a kind there are. A nil table has none.
func (t *Table) Count(k Kind) int {
	if t == nil {
		return 0
	}
	return t.counts[k]
}
