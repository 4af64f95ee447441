package server

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestBounds: the bounds of all listeners leave file descriptors for everything else.
func TestBounds(t *testing.T) {
	t.Parallel()
	for files, want := range map[int]bounds{
		64:      {grpc: 21, http: 3, debug: 2},
		256:     {grpc: 119, http: 19, debug: 9},
		1024:    {grpc: 695, http: 115, debug: 57},
		20_000:  {grpc: 10_000, http: 2487, debug: 1243},
		1 << 20: {grpc: 10_000, http: 10_000, debug: 10_000},
	} {
		if got := boundsOf(files); got != want {
			t.Errorf("%d files: %+v, want %+v", files, got, want)
		}
	}
	for share, want := range map[float64]int{0: 0, 0.25: 2500, 0.00001: 1, 1: 0, 3: 0} {
		if got := perAddress(10_000, share); got != want {
			t.Errorf("a share of %v: %d connections, want %d", share, got, want)
		}
	}
}

// slowHTTP returns the address of an HTTP port with room for eight connections. All are taken by clients that send their head
// byte by byte, from one address or several.
func slowHTTP(t *testing.T, addresses int) (addr string) {
	t.Helper()
	tcp, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	s := web.NewServer("http", boundHTTP(tcp, 8, 0.25, nil), h, slog.New(slog.DiscardHandler), web.Limits{ReadHeader: time.Hour, Read: time.Hour})
	ran := make(chan error, 1)
	go func() { ran <- s.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	for i := range 8 {
		c := dialFrom(t, tcp.Addr().String(), fmt.Sprintf("127.0.0.%d", 2+i%addresses))
		go func() {
			for b := "GET / HTTP/1.1\r\nX: "; ; b = "x" {
				if _, err := io.WriteString(c, b); err != nil {
					return
				}
				select {
				case <-t.Context().Done():
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		}()
	}
	return tcp.Addr().String()
}

// dialFrom connects from a local address. The connection closes at the end of the test.
func dialFrom(t *testing.T, addr, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
	return c
}

// asked sends one request and reports whether it was answered.
func asked(c net.Conn) bool {
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// TestSlowHTTP: a slow client counts as idle, so the server answers probes and keeps connections that have carried a request.
func TestSlowHTTP(t *testing.T) {
	t.Parallel()
	for _, addresses := range []int{1, 4} {
		addr := slowHTTP(t, addresses)
		used := dialFrom(t, addr, "127.0.0.1")
		if !asked(used) {
			t.Fatalf("%d addresses: a request was not answered while slow ones take all connections", addresses)
		}
		for i := range 6 {
			if !asked(dialFrom(t, addr, fmt.Sprintf("127.0.0.%d", 10+i))) {
				t.Errorf("%d addresses: request %d was not answered", addresses, i)
			}
		}
		if !asked(used) {
			t.Errorf("%d addresses: the server closed a used connection instead of an unused one", addresses)
		}
	}
}
