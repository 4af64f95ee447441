//go:build !linux

package testkit

import "syscall"

// attributes returns nil: only Linux can end a process with the one that started it.
func attributes() *syscall.SysProcAttr { return nil }
