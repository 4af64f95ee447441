//go:build !linux

package rls

import "syscall"

// restrict does nothing: only on Linux is the file of a unix socket made like the socket.
func restrict(string, string, syscall.RawConn) error { return nil }
