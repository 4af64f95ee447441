package proc

// After has p go on from a port.
func (p *Ports) After(port int) { p.last = port }
