package netlimit

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// The permissions of a socket's file are restricted from the moment it is created, not only when ListenUnix changes
// them.
func TestSocketIsNeverOpenToAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lc := net.ListenConfig{Control: restrict(GroupMode)}
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if more := info.Mode().Perm() &^ GroupMode; more != 0 {
		t.Errorf("the mode is %v, which is more than %v", info.Mode().Perm(), GroupMode)
	}
}
