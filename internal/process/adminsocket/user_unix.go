//go:build unix

package adminsocket

import (
	"io/fs"
	"os"
	"syscall"
)

// mine reports whether a file is this user's, or root's.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && trusted(s.Uid)
}

// trusted reports whether a user is this one, or root.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Getuid()) }
