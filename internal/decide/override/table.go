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
	numbers []*Control // the first limits
}

// domain has the controls of one domain.
type domain struct {
	whole   *slot            // of controls without entries; nil if there are none
	slots   map[string]*slot // by the path of their entries
	deepest int              // the most entries that a control has
}

// slot has the controls with the same entries.
type slot struct {
	exact []*Control // for the descriptor that has these entries and no others, those with Below among them
	below []*Control // for those that have more
}

// NewTable returns a table of controls, or nil if there are none.
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
		d.settle()
	}
	return t
}

// add adds c to its slot, unsorted: to below if it is for those too, and to exact if not.
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

// slot returns the slot of entries, which is made if there is none yet.
func (d *domain) slot(entries []Entry) *slot {
	if len(entries) == 0 {
		if d.whole == nil {
			d.whole = new(slot)
		}
		return d.whole
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

// appendEntry appends an entry to a path, so that no two paths are the same.
func appendEntry[T string | []byte](path []byte, key, value T) []byte {
	path = append(binary.AppendUvarint(path, uint64(len(key))), key...)
	return append(binary.AppendUvarint(path, uint64(len(value))), value...)
}

// settle leaves in each slot only the controls that decide.
func (d *domain) settle() {
	if d.whole != nil {
		d.whole.settle()
	}
	for _, s := range d.slots {
		s.settle()
	}
}

func (s *slot) settle() {
	later := func(a, b *Control) int { return b.Since.Compare(a.Since) }
	slices.SortStableFunc(s.exact, later)
	slices.SortStableFunc(s.below, later)
	s.exact, s.below = strongest(slices.Concat(s.exact, s.below)), strongest(s.below)
}

// strongest returns those of all, which are of one slot, that decide: the first block, or else the first allow, or else the first
// limit of each name.
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

// Find returns the controls that decide on a descriptor: a block, an allow, or one or more limits of different names; nil if there
// are none. The longest match decides. Of controls of one length a block goes before an allow, and an allow before limits. Of two
// of one kind the one without Below goes first, and then the later one. Find does not allocate, unless entries are very long.
func (t *Table) Find(name []byte, entries []descriptors.Entry) []*Control {
	return t.FindShorter(name, entries, len(entries)+1)
}

// FindShorter returns what Find would if there were no controls with as many entries as than or more.
func (t *Table) FindShorter(name []byte, entries []descriptors.Entry, than int) []*Control {
	d := t.domains[string(name)]
	if d == nil || than < 1 {
		return nil
	}
	var found []*Control
	if d.whole != nil {
		found = d.whole.of(0, len(entries))
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

// longPath is how many bytes the path of a request may have for which nothing is allocated.
const longPath = 512

// of returns the controls of s, whose entries have the length own, for a descriptor of a length.
func (s *slot) of(own, length int) []*Control {
	if own == length {
		return s.exact
	}
	return s.below
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
