//go:build !linux

package proc

import "syscall"

// EndWithParent returns nil: only Linux can end a process with the one that started it.
func EndWithParent() *syscall.SysProcAttr { return nil }
