//go:build !linux

package netlimit

import (
	"io/fs"
	"net"
	"syscall"
	"time"
)

// giveUp does nothing: only Linux has TCP_USER_TIMEOUT.
func giveUp(net.Conn, time.Duration) {}

// restrict does nothing: only Linux creates a unix socket's file with the mode of the socket.
func restrict(fs.FileMode) func(network, address string, c syscall.RawConn) error { return nil }
