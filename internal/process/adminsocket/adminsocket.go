// Package adminsocket provides the unix socket on which the admin API serves the user of the server's process without a token. The
// socket's mode excludes other users. In addition, the listener checks the user of each connection as the kernel reports it.
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

	dialTimeout = time.Second // for a local socket
)

// Server identifies a server by ADMIN_SOCKET and by where it serves gRPC, a unix socket or a port.
type Server struct{ Configured, UDS, Port string }

// path returns the path of the socket: the configured one or, by default, one in the user's directory below the directory for temporary
// files. The default contains the network namespace, if any, because containers that share the directory may use the same port.
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
		sum := sha256.Sum256([]byte(at)) // the path of a socket must be short
		name = hex.EncodeToString(sum[:8])
	}
	if network, err := os.Readlink("/proc/self/ns/net"); err == nil { // on Linux, for example net:[4026531840]
		name += "-" + strings.Trim(network, "net:[]")
	}
	return filepath.Join(os.TempDir(), "ratelimitd-"+strconv.Itoa(os.Getuid()), name+".sock")
}

// Listen listens on the socket. It creates the socket's directory unless the path is configured. Errors contain advice.
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

// Find returns the path of the socket, and whether a server listens there that no other user can have started.
func (s Server) Find() (path string, ok bool) {
	path = s.path()
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket || !mine(info) || s.Configured == "" && private(filepath.Dir(path)) != nil {
		return path, false
	}
	c, err := net.DialTimeout("unix", path, dialTimeout)
	if err != nil {
		return path, false // left by a killed server
	}
	_ = c.Close()
	return path, true
}

// private returns an error unless only this user can use the directory path.
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

// listener accepts only connections of this process's user and of root.
type listener struct{ net.Listener }

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if ofUser(c) {
			return c, nil
		}
		_ = c.Close() // another user, despite the file's mode
	}
}
