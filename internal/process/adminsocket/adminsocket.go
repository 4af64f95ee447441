// Package adminsocket is the unix socket on which the admin API serves the user of the server's process, who needs no token there.
// Only that user can open its file. Each connection is checked once more, by the user that the kernel reports for it.
//
// This package is part of the process.
package adminsocket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
)

const (
	socketMode fs.FileMode = 0o600
	dirMode    fs.FileMode = 0o700

	dialTimeout = time.Second // for a socket of this machine
)

// Server is what tells servers apart: ADMIN_SOCKET, and where gRPC is served, at the path of a unix socket or else at a port.
type Server struct{ Configured, UDS, Port string }

// path returns the path of the socket: the configured one, or else one in a directory of the user, below that for temporary files. It names
// the network namespace where there are any, because containers that share the directory may use the same port.
func (s Server) path() string {
	name := s.Port
	switch {
	case s.Configured != "":
		return s.Configured
	case s.UDS != "":
		at := s.UDS
		if abs, err := filepath.Abs(at); err == nil {
			at = abs
		}
		sum := sha256.Sum256([]byte(at)) // since the path of a socket cannot be long
		name = hex.EncodeToString(sum[:8])
	}
	if network, err := os.Readlink("/proc/self/ns/net"); err == nil { // net:[4026531840], on Linux
		name += "-" + strings.Trim(network, "net:[]")
	}
	return filepath.Join(os.TempDir(), "ratelimitd-"+strconv.Itoa(os.Getuid()), name+".sock")
}

// Listen listens on the socket. Its directory is made unless it was configured. An error says what to do.
func (s Server) Listen(ctx context.Context) (net.Listener, error) {
	path := s.path()
	if s.Configured == "" {
		dir := filepath.Dir(path)
		err := os.Mkdir(dir, dirMode)
		if err == nil || errors.Is(err, fs.ErrExist) {
			err = private(dir)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: set ADMIN_SOCKET to a path in a directory of this user", err)
		}
	}
	l, err := netlimit.ListenUnix(ctx, path, socketMode)
	if err != nil {
		return nil, fmt.Errorf("%w: set ADMIN_SOCKET to a path that this user can write", err)
	}
	return &listener{l}, nil
}

// Find returns the path of the socket, and whether a server answers on it that no other user can have made.
func (s Server) Find() (path string, ok bool) {
	path = s.path()
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket || !mine(info) || s.Configured == "" && private(filepath.Dir(path)) != nil {
		return path, false
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return path, false // of a server that was killed
	}
	_ = c.Close()
	return path, true
}

// private returns an error unless path is a directory that only this user can use.
func private(path string) error {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !info.IsDir() || !mine(info) || info.Mode().Perm()&^dirMode != 0:
		return fmt.Errorf("%s is not a directory that only this user can use", path)
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
