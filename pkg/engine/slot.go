package engine

import "strconv"

// Slot names the state of one limit among the states of one descriptor. It depends on the algorithm, the precision and,
// where it matters, the window's length or the calendar; never on the number of hits.
type Slot uint64

// GateSlot names the state of a penalty beside those of the limits.
const GateSlot Slot = 1<<64 - 1

// reserveSlot marks the state of open reservations, beside that of the limit that they are of.
const reserveSlot Slot = 1 << 63

// Reserved names the state of open reservations of the limit whose state s names.
func (s Slot) Reserved() Slot { return s | reserveSlot }

// The layout of a Slot: the window's length is in the low 49 bits, the precision and the algorithm are above it. A
// fixed window has no precision; one that follows a calendar has the number of its kind in place of the precision, and
// its zone's number in place of the length.
const (
	slotPrecision = 49
	slotAlgorithm = slotPrecision + 7
)

// Slot returns the name of the state that l reads and writes. Outside a list, buckets, logs and concurrency limits keep
// their state when the window's length changes.
func (l Limit) Slot() Slot {
	if c := l.Calendar; c != nil {
		return Slot(l.Algorithm)<<slotAlgorithm | Slot(c.number<<slotPrecision|c.zone.id)
	}
	s := Slot(l.Algorithm)<<slotAlgorithm | Slot(l.Precision)<<slotPrecision
	if l.Listed || l.Algorithm.row().perWindow {
		s |= Slot(l.Window)
	}
	return s
}

// String returns a short, unique name made of letters, digits and '/': a letter for the algorithm, the window in
// microseconds where it is part of the name, and the precision. For a calendar it has the unit, and a number for the
// zone unless that is UTC: fmonth3, or fday/2f4hg91k6z.
func (s Slot) String() string { return string(s.Append(make([]byte, 0, 24))) }

// Append appends that name to b.
func (s Slot) Append(b []byte) []byte {
	if s == GateSlot {
		return append(b, 'p')
	}
	if s&reserveSlot != 0 {
		return append((s &^ reserveSlot).Append(b), 'r')
	}
	b = append(b, Algorithm(s>>slotAlgorithm).row().letter)
	if kind, ok := s.calendar(); ok {
		b = append(b, kind.name...)
		if zone := s & (1<<slotPrecision - 1); zone != 0 {
			b = strconv.AppendUint(append(b, '/'), uint64(zone), 36)
		}
		return b
	}
	if window := uint64(s) & (1<<slotPrecision - 1); window != 0 {
		b = strconv.AppendUint(b, window, 10)
	}
	if precision := s >> slotPrecision & 127; precision != 0 {
		b = strconv.AppendUint(append(b, '/'), uint64(precision), 10)
	}
	return b
}

// calendar returns the kind of calendar that s belongs to, if any.
func (s Slot) calendar() (calendarKind, bool) {
	number := s >> slotPrecision & 127
	if Algorithm(s>>slotAlgorithm) != FixedWindow || number == 0 || number > calendarCount {
		return calendarKind{}, false
	}
	return calendarKinds()[number-1], true
}
