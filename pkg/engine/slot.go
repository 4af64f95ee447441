package engine

import "strconv"

// Slot names the state of one limit among the states of a descriptor. It depends on the algorithm, the precision and, for some
// algorithms, the window's length or the calendar, but never on the number of hits.
type Slot uint64

// GateSlot names the state of a penalty.
const GateSlot Slot = 1<<64 - 1

// reserveSlot marks the state of a limit's open reservations.
const reserveSlot Slot = 1 << 63

// Reserved returns the name of the state of open reservations of the limit whose state s names.
func (s Slot) Reserved() Slot { return s | reserveSlot }

// Layout of a Slot: the low 49 bits are the window's length, followed by the precision and the algorithm. A fixed window has no
// precision. With a calendar, the number of its kind replaces the precision, and a number for its zone and its Begin replaces the length.
const (
	slotPrecision = 49
	slotAlgorithm = slotPrecision + 7
)

// Slot returns the name of l's state. Outside a list, buckets, logs and concurrency limits keep their state if the window's length
// changes.
func (l Limit) Slot() Slot {
	if c := l.Calendar; c != nil {
		return Slot(l.Algorithm)<<slotAlgorithm | Slot(c.number<<slotPrecision|c.id)
	}
	s := Slot(l.Algorithm)<<slotAlgorithm | Slot(l.Precision)<<slotPrecision
	if l.Listed || l.Algorithm.row().perWindow {
		s |= Slot(l.Window)
	}
	return s
}

// String returns a short, unique name of letters, digits and '/': a letter for the algorithm, the window in microseconds if it is part of
// the name, and the precision. A calendar has its unit and, unless it is the usual one of UTC, a number: fmonth3, or fday/2f4hg91k6z.
func (s Slot) String() string { return string(s.Append(make([]byte, 0, 24))) }

// Append appends the result of String to b.
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

// calendar returns the kind of calendar of s, if any.
func (s Slot) calendar() (calendarKind, bool) {
	number := s >> slotPrecision & 127
	if Algorithm(s>>slotAlgorithm) != FixedWindow || number == 0 || number > calendarCount {
		return calendarKind{}, false
	}
	return calendarKinds()[number-1], true
}
