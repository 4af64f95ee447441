//go:build !linux && !darwin

package adminsocket

import "net"

// ofUser returns true. On this platform, only the file's mode excludes other users.
func ofUser(net.Conn) bool { return true }
