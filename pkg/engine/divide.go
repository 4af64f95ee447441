package engine

// Undivided returns what forbids that l is divided among clients that decide by themselves: rate_limits, the key of a parameter, or
// the name of the algorithm. It returns "" if nothing does. What can be divided is what can be reserved: hits that are
// counted together, and come back by time alone.
func (l *Limit) Undivided() string {
	switch a := l.Algorithm.row(); {
	case l.Listed:
		return "rate_limits"
	case !a.reserved:
		return a.name
	case l.Debt > 0:
		return "debt"
	}
	return ""
}
