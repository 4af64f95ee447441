package engine

// A sliding window is cut into Precision sub-windows, whose numbers count from the epoch. Hits count by sub-window: those
// of the present one and of the Precision before it, the oldest of which reaches out of the window and is counted whole.
// So at most Hits are admitted in any span of a window's length, and what was spent comes back at most one sub-window
// late.

// cell is the number of the sub-window that now is in.
func (l *Limit) cell(now Micros) Micros {
	quo, _ := muldiv(uint64(now), uint64(l.Precision), uint64(l.Window))
	return Micros(quo)
}

// cellStart is the first microsecond of a sub-window.
func (l *Limit) cellStart(cell Micros) Micros {
	quo, rem := muldiv(uint64(cell), uint64(l.Window), uint64(l.Precision))
	if rem > 0 {
		quo++
	}
	return Micros(quo)
}
