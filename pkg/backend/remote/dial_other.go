//go:build !linux

package remote

import (
	"net"
	"syscall"
)

// control sets nothing: TCP_USER_TIMEOUT is known to Linux only, and deadlines and keepalive do without.
func control(_, _ string, _ syscall.RawConn) error { return nil }

// Alive is not known here; a connection that is closed shows with the next call.
func Alive(net.Conn) error { return nil }
