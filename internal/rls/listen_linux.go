package rls

import "syscall"

// restrict gives a unix socket its mode before it has a name, so that the file, which the kernel makes like the socket, is
// never open to more.
func restrict(_, _ string, c syscall.RawConn) error {
	var err error
	if controlErr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(socketMode)) }); controlErr != nil {
		return controlErr
	}
	return err
}
