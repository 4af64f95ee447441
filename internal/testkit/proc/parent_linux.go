package proc

import "syscall"

// EndWithParent makes a process end with the one that started it, even if that is killed.
func EndWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
