package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// TestH11_SlowNetworks: slow bodies of one network, or of many, do not block other networks. Of all networks, 16 have a place, for
// which at most 16 others wait.
func TestH11_SlowNetworks(t *testing.T) {
	t.Parallel()
	for networks, wantCut := range map[int]int32{1: 0, 8: 8*8 - 16 - 16} {
		addr, _ := start(t, web.MainHandler(echo()), web.Limits{Read: time.Hour, Write: time.Hour})
		cut := slowNetworks(t, addr, networks)
		testkit.Eventually(t, "slow bodies are cut off", func() bool { return cut.Load() >= wantCut })
		for i := range 20 {
			if got := do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", 20<<10)); got.Status != http.StatusOK {
				t.Errorf("%d slow networks: body %d: %d %.100s; want 200", networks, i, got.Status, got.Body)
			}
		}
		if got := cut.Load(); networks == 1 && got != 0 {
			t.Errorf("%d bodies of a slow network were cut off", got)
		}
	}
}

// TestH11_Deciding: bodies of slow networks do not replace a body that is being decided.
func TestH11_Deciding(t *testing.T) {
	t.Parallel()
	deciding, decide := make(chan struct{}), make(chan struct{})
	m := echo()
	m.JSON = func(ctx context.Context, _ []byte) (int, string, []byte) {
		close(deciding)
		<-decide
		if errors.Is(ctx.Err(), context.Canceled) { // the deadline, after 5 s, may pass on a busy machine
			return http.StatusInternalServerError, "", []byte("the request has ended")
		}
		return http.StatusOK, "", nil
	}
	addr, _ := start(t, web.MainHandler(m), web.Limits{Read: time.Hour, Write: time.Hour})
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := do(t, "POST", "http://"+addr+"/json", strings.Repeat(" ", 20<<10)); got.Status != http.StatusOK {
			t.Errorf("a body that was being decided: %d %.100s; want 200", got.Status, got.Body)
		}
	})
	<-deciding
	cut := slowNetworks(t, addr, 8)
	testkit.Eventually(t, "slow bodies are cut off", func() bool { return cut.Load() >= 8*8-15-16 })
	close(decide)
	wg.Wait()
}

// slowNetworks sends 8 slow bodies from each of some networks, and counts those that lose their place to others.
func slowNetworks(t *testing.T, addr string, networks int) (cut *atomic.Int32) {
	t.Helper()
	cut = new(atomic.Int32)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	for i := range networks * 8 {
		c := slowly(t, addr, fmt.Sprintf("127.0.0.%d", 2+i/8), "/json")
		wg.Go(func() {
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return // at the end of the test
			}
			_ = resp.Body.Close()
			switch resp.StatusCode {
			case http.StatusRequestTimeout:
				cut.Add(1)
			case http.StatusServiceUnavailable:
			default:
				t.Errorf("a slow body: %d, want 408 or 503", resp.StatusCode)
			}
		})
	}
	return cut
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
