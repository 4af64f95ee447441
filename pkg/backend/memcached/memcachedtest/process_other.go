//go:build !linux

package memcachedtest

import "syscall"

// attributes are none: only Linux ends a process with the one that started it.
func attributes() *syscall.SysProcAttr { return nil }
