package engine

// A sliding window is divided into Precision sub-windows, numbered from the epoch. Hits are counted per sub-window. Those of the current
// sub-window and of the Precision sub-windows before it count; the oldest lies only partly in the window but counts completely. So at
// most Hits are admitted in any period of a window's length, and consumed hits come back at most one sub-window late.

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
