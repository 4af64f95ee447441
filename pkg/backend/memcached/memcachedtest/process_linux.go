package memcachedtest

import "syscall"

// attributes has a process end with the one that started it, even where that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
