package netlimit

import (
	"io/fs"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUp makes the kernel close a connection whose client has not acknowledged data for the given time. grpc does the same
// for TCP connections, but does not recognize them inside a [Conn].
func giveUp(c net.Conn, after time.Duration) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after/time.Millisecond)) // unsupported by MPTCP
		})
	}
}

// restrict sets the mode of a unix socket before bind. The kernel creates the file with this mode, so it is never
// accessible to others.
func restrict(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if controlErr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode)) }); controlErr != nil {
			return controlErr
		}
		return err
	}
}
