package testkit

import "syscall"

// attributes makes a process end with the one that started it, even if that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
