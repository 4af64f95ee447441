//go:build !linux

package remote

import (
	"net"
	"syscall"
	"time"
)

// UserTimeout returns nil, because only Linux has TCP_USER_TIMEOUT. Elsewhere, deadlines and keep-alive take its place.
func UserTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }

// Alive returns nil, because this system cannot check; the next call detects a closed connection.
func Alive(net.Conn) error { return nil }
