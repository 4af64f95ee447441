//go:build linux || darwin

package adminsocket

import "net"

// ofUser reports whether the peer of a connection runs as this user or root.
func ofUser(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	var uid uint32
	controlErr := raw.Control(func(fd uintptr) { uid, err = peerUID(int(fd)) })
	return controlErr == nil && err == nil && trusted(uid)
}
