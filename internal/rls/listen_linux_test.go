package rls

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

// The file of a socket is restricted from its first moment, not only once ListenUnix has come back to it.
func TestSocketIsNeverOpenToAll(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lc := net.ListenConfig{Control: restrict}
	l, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if more := info.Mode().Perm() &^ socketMode; more != 0 {
		t.Errorf("the mode is %v, which is more than %v", info.Mode().Perm(), socketMode)
	}
}
