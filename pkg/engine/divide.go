package engine

// Undivided returns the reason why l cannot be divided among clients that decide on their own: rate_limits, the key of a parameter, or
// the name of the algorithm. It returns "" if it can. A limit can be divided if it supports reservations: its hits are counted together
// and come back only with time.
func (l *Limit) Undivided() string {
	switch a := l.Algorithm.row(); {
	case l.Listed:
		return "rate_limits"
	case !a.reserved:
		return a.name
	case l.Debt > 0:
		return "debt"
	case l.FillInterval > 0:
		return "fill_interval"
	case l.Calendar.Endless():
		return UnitForever
	}
	return ""
}
