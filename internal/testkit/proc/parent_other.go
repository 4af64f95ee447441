//go:build !linux

package proc

import "syscall"

// EndWithParent returns nil, because only Linux can end a process with its parent.
func EndWithParent() *syscall.SysProcAttr { return nil }
