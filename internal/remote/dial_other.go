//go:build !linux

package remote

import (
	"net"
	"syscall"
)

// control does nothing: only Linux has TCP_USER_TIMEOUT; elsewhere deadlines and keep-alive have to do.
func control(_, _ string, _ syscall.RawConn) error { return nil }

// Alive cannot tell here; a closed connection is noticed by the next call.
func Alive(net.Conn) error { return nil }
