package netlimit

import (
	"io/fs"
	"syscall"
)

// restrict sets the mode of a unix socket before it is bound. The kernel creates the file with the socket's mode, so it
// is never open to others.
func restrict(mode fs.FileMode) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if controlErr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode)) }); controlErr != nil {
			return controlErr
		}
		return err
	}
}
