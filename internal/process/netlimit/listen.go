package netlimit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// GroupMode is the mode of a unix socket that permits its owner and group.
const GroupMode fs.FileMode = 0o660

// ListenTCP listens on address, such as 0.0.0.0:8081. A second server cannot listen on the same port.
func ListenTCP(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err // contains "listen tcp" and the address; not all ports are for gRPC
	}
	return l, nil
}

// ListenUnix listens on a unix socket at path with the given mode. It replaces a socket on which no server listens.
// Anything else at path is an error.
func ListenUnix(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, fmt.Errorf("listening for gRPC on the unix socket %s: %w", path, err)
	}
	lc := net.ListenConfig{Control: restrict(mode)}
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening for gRPC: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, fmt.Errorf("listening for gRPC on the unix socket %s: %w", path, errors.Join(err, l.Close()))
	}
	return l, nil
}

// removeStale removes the socket at path if no server listens on it.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something else exists at this path; remove it, or set a different path")
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		return errors.Join(errors.New("another server is listening on it; stop that server, or set a different path"), c.Close())
	case errors.Is(err, syscall.ECONNREFUSED):
		return os.Remove(path)
	default:
		return fmt.Errorf("cannot determine whether another server uses it: %w", err)
	}
}
