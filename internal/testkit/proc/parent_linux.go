package proc

import "syscall"

// EndWithParent makes a process end with its parent, even if the parent is killed.
func EndWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
