package proc

// After sets the port after which p continues.
func (p *Ports) After(port int) { p.last = port }
