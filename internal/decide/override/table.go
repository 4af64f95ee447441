package override

import (
	"encoding/binary"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Table finds the controls of a descriptor. It is immutable: each change builds a new one.
type Table struct {
	domains map[string]*domain
	counts  [kinds]int
	numbers []*Control // the first MaxNumbers limits
}

// domain holds the controls of one domain.
type domain struct {
	root    *slot            // controls without entries; nil if none
	slots   map[string]*slot // by the path of their entries
	deepest int              // the largest number of entries of a control
}

// slot holds the controls with the same entries.
type slot struct {
	exact []*Control // for the descriptor that equals the entries; includes controls with Below
	below []*Control // for longer descriptors
}

// NewTable returns a table of controls, or nil if all is empty.
func NewTable(all []*Control) *Table {
	if len(all) == 0 {
		return nil
	}
	t := &Table{domains: make(map[string]*domain)}
	for _, c := range all {
		t.add(c)
		if t.counts[c.Kind]++; c.Kind == Limit && len(t.numbers) < MaxNumbers {
			t.numbers = append(t.numbers, c)
		}
	}
	for _, d := range t.domains {
		d.prune()
	}
	return t
}

// add adds c to its slot, unsorted: to below if c has Below, otherwise to exact.
func (t *Table) add(c *Control) {
	d := t.domains[c.Domain]
	if d == nil {
		d = &domain{slots: make(map[string]*slot)}
		t.domains[c.Domain] = d
	}
	d.deepest = max(d.deepest, len(c.Entries))
	s := d.slot(c.Entries)
	if c.Below {
		s.below = append(s.below, c)
	} else {
		s.exact = append(s.exact, c)
	}
}

// slot returns the slot of entries. It creates the slot if necessary.
func (d *domain) slot(entries []Entry) *slot {
	if len(entries) == 0 {
		if d.root == nil {
			d.root = new(slot)
		}
		return d.root
	}
	var path []byte
	for _, e := range entries {
		path = appendEntry(path, e.Key, e.Value)
	}
	s := d.slots[string(path)]
	if s == nil {
		s = new(slot)
		d.slots[string(path)] = s
	}
	return s
}

// appendEntry appends an entry to a path. Different entries have different paths.
func appendEntry[T string | []byte](path []byte, key, value T) []byte {
	path = append(binary.AppendUvarint(path, uint64(len(key))), key...)
	return append(binary.AppendUvarint(path, uint64(len(value))), value...)
}

// prune keeps only the effective controls of each slot.
func (d *domain) prune() {
	if d.root != nil {
		d.root.prune()
	}
	for _, s := range d.slots {
		s.prune()
	}
}

// prune sorts the controls of s and keeps only the effective ones.
func (s *slot) prune() {
	later := func(a, b *Control) int { return b.Since.Compare(a.Since) }
	slices.SortStableFunc(s.exact, later)
	slices.SortStableFunc(s.below, later)
	s.exact, s.below = strongest(slices.Concat(s.exact, s.below)), strongest(s.below)
}

// strongest returns the effective controls of all, which belong to one slot: the first block, otherwise the first allow, otherwise the
// first limit of each name.
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

// Find returns the controls that decide a descriptor: a block, an allow, or one or more limits with different names. It returns nil if
// there are none. The controls with the most entries win. Among these, a block precedes an allow, and an allow precedes limits. Within a
// kind, a control without Below precedes one with Below, and then a later one precedes an earlier one. Find does not allocate unless the
// entries are longer than longPath bytes.
func (t *Table) Find(name []byte, entries []descriptors.Entry) []*Control {
	return t.FindShorter(name, entries, len(entries)+1)
}

// FindShorter is like Find but ignores controls with than or more entries.
func (t *Table) FindShorter(name []byte, entries []descriptors.Entry, than int) []*Control {
	d := t.domains[string(name)]
	if d == nil || than < 1 {
		return nil
	}
	var found []*Control
	if d.root != nil {
		found = d.root.of(0, len(entries))
	}
	var room [longPath]byte
	path := room[:0]
	for i, e := range entries[:min(len(entries), d.deepest, than-1)] {
		path = appendEntry(path, e.Key, e.Value)
		if s := d.slots[string(path)]; s != nil {
			if f := s.of(i+1, len(entries)); f != nil {
				found = f
			}
		}
	}
	return found
}

// longPath is the length in bytes of the longest path that FindShorter builds without allocating.
const longPath = 512

// of returns the controls of s, whose entries have length own, for a descriptor of the given length.
func (s *slot) of(own, length int) []*Control {
	if own == length {
		return s.exact
	}
	return s.below
}

// Numbers returns the first limits, at most [MaxNumbers]. A nil table has none.
func (t *Table) Numbers() []*Control {
	if t == nil {
		return nil
	}
	return t.numbers
}

// Count returns the number of controls of a kind. A nil table has none.
func (t *Table) Count(k Kind) int {
	if t == nil {
		return 0
	}
	return t.counts[k]
}
