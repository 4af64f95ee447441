//go:build !linux

package remote

import (
	"net"
	"syscall"
	"time"
)

// UserTimeout returns nil: only Linux has TCP_USER_TIMEOUT; elsewhere deadlines and keep-alive have to do.
func UserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }

// Alive cannot tell here; a closed connection is noticed by the next call.
func Alive(net.Conn) error { return nil }
