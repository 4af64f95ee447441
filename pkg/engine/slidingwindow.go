package engine

// A sliding window is cut into Precision sub-windows, numbered from the epoch. Hits are counted per sub-window, and
// those of the current one and of the Precision before it count; the oldest of these lies only partly in the window and
// is counted whole. So at most Hits are admitted in any span of a window's length, and what was spent comes back at
// most one sub-window late.

// cell returns the number of the sub-window that contains now.
func (l *Limit) cell(now Micros) Micros {
	quo, _ := muldiv(uint64(now), uint64(l.Precision), uint64(l.Window))
	return Micros(quo)
}

// cellStart returns the first microsecond of a sub-window.
func (l *Limit) cellStart(cell Micros) Micros {
	quo, rem := muldiv(uint64(cell), uint64(l.Window), uint64(l.Precision))
	if rem > 0 {
		quo++
	}
	return Micros(quo)
}
