package descriptors

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// AppendName appends the canonical name of a descriptor's counter to dst, even if no rule matched: domain and entries, length-prefixed.
// The pattern of a shared threshold replaces the value, and the value of a holder or of the entry of [Reserve.By] is omitted. If raw is
// set, as for an override ([Override]), only these values differ from the request.
//
// Names are unambiguous, because each text follows its length. A length of 0 in place of a value marks an omitted one, so the counter
// differs from that of the descriptor without the entry.
func (m Match) AppendName(dst []byte, d *Domain, entries []Entry, raw bool) []byte {
	dst = appendText(dst, d.Name)
	if m.Rule == nil || !m.Rule.rewritten {
		for i := range entries {
			dst = appendText(dst, entries[i].Key)
			dst = appendValue(dst, entries[i].Value)
		}
		return dst
	}
	for i, n := range m.Rule.path {
		switch e := m.entry(entries, i); {
		case i == m.Rule.holderAt || i == m.Rule.byAt:
			dst = appendText(dst, e.Key)
			dst = binary.AppendUvarint(dst, 0)
		case n.flags&shareThreshold != 0 && !raw:
			dst = appendText(dst, n.Key)
			dst = appendValue(dst, n.Value)
		default:
			dst = appendText(dst, e.Key)
			dst = appendValue(dst, e.Value)
		}
	}
	return dst
}

// AppendReferenceName appends envoyproxy/ratelimit's name of the counter, without its prefix and without the start of the window:
// domain_key_value_key_value_. The pattern of a shared threshold replaces the value. If raw is set, as for an override, values are
// unchanged. Nothing is escaped, so different descriptors may have the same name.
func (m Match) AppendReferenceName(dst []byte, d *Domain, entries []Entry, raw bool) []byte {
	dst = append(append(dst, d.Name...), '_')
	rewritten := m.Rule != nil && m.Rule.rewritten && !raw
	for i := range entries {
		dst = append(append(dst, entries[i].Key...), '_')
		if rewritten && m.Rule.path[i].flags&shareThreshold != 0 {
			dst = append(dst, m.Rule.path[i].Value...)
		} else {
			dst = append(dst, entries[i].Value...)
		}
		dst = append(dst, '_')
	}
	return dst
}

// appendText appends a text after its length.
func appendText[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// appendValue appends a value after its length plus one, because 0 marks an omitted one.
func appendValue[T ~string | ~[]byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))+1), s...)
}

// Holder returns the value of the entry that identifies the holder of slots; ok is false for a rule without holders. The bytes alias
// entries.
func (m Match) Holder(entries []Entry) (owner []byte, ok bool) {
	if m.Rule == nil || m.Rule.holderAt < 0 || m.Rule.holderAt >= len(entries) && m.Rule.byAt < 0 {
		return nil, false
	}
	return m.entry(entries, m.Rule.holderAt).Value, true
}

// Hash returns the key of a canonical name returned by [Match.AppendName]: the first half of its SHA-256. It is the Key of an operation
// of pkg/backend.
func Hash(name []byte) [16]byte {
	sum := sha256.Sum256(name)
	return [16]byte(sum[:16])
}

// Secret derives keys from names with a secret: the first half of an HMAC-SHA-256. A nil Secret derives the keys of [Hash].
type Secret struct{ inner, outer [sha256.BlockSize]byte }

// NewSecret returns a Secret with the given key.
func NewSecret(key []byte) *Secret {
	s := new(Secret)
	if len(key) > sha256.BlockSize {
		sum := sha256.Sum256(key)
		key = sum[:]
	}
	copy(s.inner[:], key)
	s.outer = s.inner
	for i := range s.inner {
		s.inner[i] ^= 0x36
		s.outer[i] ^= 0x5c
	}
	return s
}

// Begin appends the inner padding of the HMAC to dst. The caller appends the name and calls Hash.
func (s *Secret) Begin(dst []byte) []byte {
	if s == nil {
		return dst
	}
	return append(dst, s.inner[:]...)
}

// Hash returns the key of a name that was appended to the result of Begin.
func (s *Secret) Hash(begun []byte) [16]byte {
	if s == nil {
		return Hash(begun)
	}
	inner := sha256.Sum256(begun)
	var whole [sha256.BlockSize + sha256.Size]byte
	copy(whole[:], s.outer[:])
	copy(whole[sha256.BlockSize:], inner[:])
	return Hash(whole[:])
}

// Identity returns a string that distinguishes the rule from all others, and that is the same in every Set with this rule. Path is
// ambiguous, because domains and keys may contain dots; Identity prefixes it with the lengths of its parts.
func (r *Rule) Identity() string {
	path := r.node.path()
	id := binary.AppendUvarint(nil, uint64(len(path)))
	for _, n := range path {
		id = binary.AppendUvarint(id, uint64(len(n.Key)))
		id = binary.AppendUvarint(id, uint64(len(n.Value)))
	}
	return string(append(id, r.Path...))
}

// DynamicMetric reports whether the rule's metric key may contain values of requests. Otherwise the key is Path.
func (r *Rule) DynamicMetric() bool { return r.dynamic }

// AppendMetricKey appends the reference's metric key to dst. dynamic is true if the key contains values of the request that differ from
// the rules. Without a rule, it appends nothing.
func (m Match) AppendMetricKey(dst []byte, d *Domain, entries []Entry) (key []byte, dynamic bool) {
	switch {
	case m.Rule == nil:
		return dst, false
	case !m.Rule.dynamic:
		return append(dst, m.Rule.Path...), false
	}
	dst = append(dst, d.Name...)
	shared := m.node.flags&detailedMetric != 0 && m.shares(entries)
	for i, n := range m.Rule.path {
		var fromRequest bool
		dst, fromRequest = m.appendLevel(dst, n, m.entry(entries, i), shared)
		dst = m.Rule.appendPlan(dst, i)
		dynamic = dynamic || fromRequest
	}
	return dst, dynamic
}

// MetricLevels returns the metric key without its domain as one string per level. AppendMetricKey joins them with dots.
func (m Match) MetricLevels(entries []Entry) []string {
	if m.Rule == nil {
		return nil
	}
	shared := m.node.flags&detailedMetric != 0 && m.shares(entries)
	var levels []string
	for i, n := range m.node.path() {
		level, _ := m.appendLevel(nil, n, m.entry(entries, i), shared)
		level = m.Rule.appendPlan(level, i)
		levels = append(levels, string(level[1:]))
	}
	return levels
}

// appendLevel appends a dot and the level of the metric key for n, which matched e. fromRequest is true if it contains values of the
// request.
func (m Match) appendLevel(dst []byte, n *Node, e *Entry, shared bool) (level []byte, fromRequest bool) {
	wildcard := n.IsWildcard() && !n.spells(e)
	switch {
	case wildcard && n.flags&shareThreshold != 0:
		return appendLabel(dst, n.Key, n.Value, false), false
	case m.node.flags&detailedMetric != 0:
		return appendLabel(dst, e.Key, e.Value, !shared), !n.spells(e)
	case n.flags&valueToMetric != 0 && (wildcard || n.Value == ""):
		return appendLabel(dst, e.Key, e.Value, false), !n.spells(e)
	}
	return appendLabel(dst, n.Key, n.Value, false), false
}

// shares reports whether a wildcard with a shared threshold matched any of the entries.
func (m Match) shares(entries []Entry) bool {
	for i, n := range m.Rule.path {
		if n.flags&shareThreshold != 0 && n.IsWildcard() && !n.spells(m.entry(entries, i)) {
			return true
		}
	}
	return false
}

// spells reports whether the entry equals the node's key and value literally.
func (n *Node) spells(e *Entry) bool {
	return string(e.Key) == n.Key && string(e.Value) == n.Value
}

// AppendOverrideMetricKey appends the reference's metric key of an override: the domain and the entries with their values.
func (d *Domain) AppendOverrideMetricKey(dst []byte, entries []Entry) []byte {
	dst = append(dst, d.Name...)
	for i := range entries {
		dst = appendLabel(dst, entries[i].Key, entries[i].Value, false)
	}
	return dst
}

// appendLabel appends .key_value, or .key if the value is empty. If underscore is set, it always appends the underscore.
func appendLabel[T ~string | ~[]byte](dst []byte, key, value T, underscore bool) []byte {
	dst = append(append(dst, '.'), key...)
	if len(value) > 0 || underscore {
		dst = append(append(dst, '_'), value...)
	}
	return dst
}

// SameNames reports whether r's counters have the same names as those of was, as far as the rules determine them.
func (r *Rule) SameNames(was *Rule) bool {
	if r.holderAt != was.holderAt || r.byAt != was.byAt {
		return false
	}
	a, b := r.node.path(), was.node.path()
	return slices.EqualFunc(a, b, func(a, b *Node) bool {
		return (a.flags^b.flags)&shareThreshold == 0
	})
}
