//go:build !linux

package statsd

import "syscall"

// control sets nothing: TCP_USER_TIMEOUT is known to Linux only.
func control(_, _ string, _ syscall.RawConn) error { return nil }
