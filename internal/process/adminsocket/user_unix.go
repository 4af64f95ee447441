//go:build unix

package adminsocket

import (
	"io/fs"
	"os"
	"syscall"
)

// mine reports whether this user or root owns a file.
func mine(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && trusted(s.Uid)
}

// trusted reports whether uid is this user or root.
func trusted(uid uint32) bool { return uid == 0 || uid == uint32(os.Getuid()) }
