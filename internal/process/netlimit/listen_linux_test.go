package netlimit

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSocketIsNeverOpenToAll: the permissions of a socket's file are restricted from its creation, not only when
// ListenUnix changes them.
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

// TestGiveUp: the kernel closes connections whose clients acknowledge nothing, so that sent data does not arrive much later.
func TestGiveUp(t *testing.T) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	tcp, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Listen(tcp, Config{})
	defer l.Close()
	client, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*Conn).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	e := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	if e != nil || err != nil {
		t.Fatal(e, err)
	}
	if want := int(unanswered / time.Millisecond); got != want {
		t.Errorf("TCP_USER_TIMEOUT is %d ms, want %d", got, want)
	}
}
