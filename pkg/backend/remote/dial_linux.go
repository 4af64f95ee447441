package remote

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// UserTimeout returns what sets TCP_USER_TIMEOUT on new connections: how long packets may stay unacknowledged before a connection is
// given up, for which the kernel's default is a quarter of an hour.
func UserTimeout(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if !strings.HasPrefix(network, "tcp") {
			return nil
		}
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d/time.Millisecond))
		}); e != nil {
			return e
		}
		return err
	}
}

// Alive returns an error if the other side has closed conn, on which no reply may be outstanding. It does not block.
func Alive(conn net.Conn) error {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // below TLS; a pending message of TLS itself does no harm
	}
	s, ok := conn.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var found error
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		switch {
		case err == nil && n == 0:
			found = io.EOF
		case err != nil && !errors.Is(err, syscall.EAGAIN):
			found = err
		}
	})
	if err != nil {
		return err
	}
	return found
}
