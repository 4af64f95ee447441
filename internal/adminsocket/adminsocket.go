// Package adminsocket is the unix socket on which the admin API serves the user of the server's process, who needs no token
// there. Its file can be opened by that user alone, and each connection is checked once more: the kernel says whose it is.
package adminsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/netlimit"
)

const (
	socketMode fs.FileMode = 0o600
	dirMode    fs.FileMode = 0o700

	dialTimeout = time.Second // for a socket of this machine
)

// Path returns the path of the socket of a server whose gRPC port that is: the configured one, or else one in a directory of
// the user, below that for temporary files.
func Path(configured, port string) string {
	if configured != "" {
		return configured
	}
	return filepath.Join(os.TempDir(), "ratelimitd-"+strconv.Itoa(os.Getuid()), port+".sock")
}

// Listen listens on the socket of [Path]. Its directory is made unless it was configured. An error says what to do.
func Listen(ctx context.Context, configured, port string) (net.Listener, error) {
	path := Path(configured, port)
	if configured == "" {
		if err := makeDir(filepath.Dir(path)); err != nil {
			return nil, fmt.Errorf("%w: set ADMIN_SOCKET to a path in a directory of this user", err)
		}
	}
	l, err := netlimit.ListenUnix(ctx, path, socketMode)
	if err != nil {
		return nil, fmt.Errorf("%w: set ADMIN_SOCKET to a path that this user can write", err)
	}
	return &listener{l}, nil
}

// Usable reports whether a server answers on a socket at path that no other user can have made.
func Usable(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket || !mine(info) {
		return false
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return false // of a server that was killed
	}
	_ = c.Close()
	return true
}

// makeDir makes a directory that only this user can use, or finds one.
func makeDir(path string) error {
	if err := os.Mkdir(path, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || !mine(info) || info.Mode().Perm()&^dirMode != 0:
		return fmt.Errorf("%s is not a directory that this user alone can use", path)
	}
	return nil
}

// listener accepts connections of this process' user, and of root.
type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if ofUser(c) {
			return c, nil
		}
		_ = c.Close() // of another user, who got past the mode of the file
	}
}
