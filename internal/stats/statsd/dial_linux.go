package statsd

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unanswered is how long packets may stay unacknowledged before the connection is given up. The kernel's default of a
// quarter of an hour would lose everything sent in the meantime.
const unanswered = 20 * time.Second

// control sets TCP_USER_TIMEOUT.
func control(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unanswered/time.Millisecond))
	}); e != nil {
		return e
	}
	return err
}
