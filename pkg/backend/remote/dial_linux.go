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

// UserTimeout returns a dial control that sets TCP_USER_TIMEOUT, the maximum time for which packets may remain unacknowledged before the
// kernel closes the connection. The kernel's default is about 15 minutes.
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

// Alive returns an error if the peer has closed conn. No reply may be outstanding. It does not block.
func Alive(conn net.Conn) error {
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = t.NetConn() // the connection below TLS; a pending TLS message is no error
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
