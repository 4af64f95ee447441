package web_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// slowly sends most of a body of 200,000 bytes from an address of this machine, and keeps the connection open.
func slowly(t *testing.T, addr, from, path string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	head := "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
	if _, err := io.WriteString(c, head+strings.Repeat(" ", 17<<10)); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestH11_SlowNetworks: slow bodies of one network, or of many, do not block other networks.
func TestH11_SlowNetworks(t *testing.T) {
	t.Parallel()
	for _, networks := range []int{1, 8} {
		addr, _ := start(t, web.MainHandler(echo()), web.Limits{Read: time.Hour, Write: time.Hour})
		var slow []net.Conn
		for i := range networks {
			for range 8 {
				slow = append(slow, slowly(t, addr, fmt.Sprintf("127.0.0.%d", 2+i), "/json"))
			}
		}
		for i := range 20 {
			if got := do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", 20<<10)); got.Status != http.StatusOK {
				t.Errorf("%d slow networks: body %d: %d %.100s; want 200", networks, i, got.Status, got.Body)
			}
		}
		cut := 0
		for _, c := range slow[:networks*4] { // others wait for 5 s
			_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
				_ = resp.Body.Close()
				if cut++; resp.StatusCode != http.StatusRequestTimeout && resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("a slow body: %d, want 408", resp.StatusCode)
				}
			}
		}
		if (cut > 0) != (networks > 1) {
			t.Errorf("%d slow networks: %d bodies were cut off", networks, cut)
		}
	}
}

// TestH14_BodiesOfPages: a client that does not send its body takes no turn from others.
func TestH14_BodiesOfPages(t *testing.T) {
	t.Parallel()
	addr, _ := start(t, web.DebugHandler(pages()), web.Limits{Read: time.Hour, Write: time.Hour})
	for path, want := range map[string]int{"/stats": http.StatusOK, "/metrics": http.StatusOK, "/rlconfig": http.StatusOK, "/debug/pprof/symbol?seconds=1": http.StatusOK} {
		for range 6 {
			c := slowly(t, addr, "127.0.0.1", path)
			_ = c.SetReadDeadline(time.Now().Add(testkit.Patience))
			wantStatus(t, c, want)
		}
		if got := do(t, "GET", "http://"+addr+path, ""); got.Status != want {
			t.Errorf("%s: %d %.100s; want %d", path, got.Status, got.Body, want)
		}
	}
}

// TestH12_SlowNetworks: slow readers of one network leave places for other networks.
func TestH12_SlowNetworks(t *testing.T) {
	t.Parallel()
	began := make(chan struct{}, 8)
	addr, _ := start(t, web.MetricsHandler("/metrics", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.RemoteAddr, "127.0.0.2:") {
			began <- struct{}{}
			<-t.Context().Done()
		}
	})), web.Limits{Read: time.Hour, Write: time.Hour})
	for range 8 {
		slowly(t, addr, "127.0.0.2", "/metrics")
	}
	<-began
	<-began
	for range 3 {
		if got := do(t, "GET", "http://"+addr+"/metrics", ""); got.Status != http.StatusOK {
			t.Fatalf("while another network reads slowly: %d %.100s; want 200", got.Status, got.Body)
		}
	}
}
