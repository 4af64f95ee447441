package adminsocket

import (
	"net"

	"golang.org/x/sys/unix"
)

// ofUser reports whether the other end of a connection is a process of this user, or of root.
func ofUser(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var peer *unix.Xucred
	controlErr := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED) })
	return controlErr == nil && err == nil && trusted(peer.Uid)
}
