package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// hostileRules never shed.
const hostileRules = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 4294967295}}]\n"

// dialFrom connects to the server from an address of this machine.
func (d *daemon) dialFrom(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}, Timeout: testkit.Patience}
	return dialer.DialContext(ctx, "tcp", d.At["GRPC"])
}

// from is a client that connects to the server from an address of this machine, until the test ends.
func (d *daemon) from(address string) *grpc.ClientConn {
	d.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+d.At["GRPC"], grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return d.dialFrom(ctx, address) }))
	testkit.Check(d.t, err)
	d.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// http2Conn opens a connection of HTTP/2 from an address, which says hello. The server may close it.
func (d *daemon) http2Conn(from string) net.Conn {
	d.t.Helper()
	c, err := d.dialFrom(d.t.Context(), from)
	testkit.Check(d.t, err)
	_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00") // and SETTINGS; an error where it is closed
	return c
}

// idle opens connections of HTTP/2 from an address, which say nothing but hello.
func (d *daemon) idle(from string, n int) (closeAll func()) {
	d.t.Helper()
	var open []net.Conn
	closeAll = func() {
		for _, c := range open {
			_ = c.Close()
		}
	}
	d.t.Cleanup(closeAll)
	for range n {
		open = append(open, d.http2Conn(from))
	}
	return closeAll
}

// answers expects an answer to a client that connects from an address, and leaves.
func (d *daemon) answers(from string) {
	d.t.Helper()
	conn := d.from(from)
	ctx, cancel := context.WithTimeout(d.t.Context(), testkit.Patience)
	defer cancel()
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("user", "ann"), grpc.WaitForReady(true)); err != nil {
		d.t.Errorf("a client from %s: %v", from, err)
	}
	testkit.Check(d.t, conn.Close())
}

// says expects that both pages about health say it, and that the server stays healthy.
func (d *daemon) says(want string) {
	d.t.Helper()
	for _, path := range []string{"/healthcheck?verbose", "/readyz"} {
		if text, code := d.get("HTTP", path); code != http.StatusOK || !strings.Contains(text, want) {
			d.t.Errorf("%s: %d %s, want %q", path, code, text, want)
		}
	}
}

// TestG40_IdleConnections: 10,050 connections from one address, and then as many as there may be from several.
func TestG40_IdleConnections(t *testing.T) {
	d := startProcess(t, hostileRules, "BACKEND_TYPE=memory")
	closeAll := d.idle("127.0.0.1", 10_050)
	d.says("127.0.0.1 has 2500 connections")
	testkit.Eventually(t, "a quarter is open", func() bool { return d.metric("ratelimitd_connections") == 2500 })
	testkit.Eventually(t, "the others were closed, for one reason or the other: that depends on how long it took to open them", func() bool {
		return d.closed("idle")+d.closed("address") == 7550
	})
	d.answers("127.0.0.2")
	d.answers("127.0.0.1") // in the place of one that is idle

	closeAll()
	testkit.Eventually(t, "it is over", func() bool {
		text, _ := d.get("HTTP", "/healthcheck?verbose")
		return strings.Contains(text, "\nconnections: OK")
	})
	for _, from := range []string{"127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"} {
		d.idle(from, 2500)
	}
	testkit.Eventually(t, "the bound is reached", func() bool { return d.metric("ratelimitd_connections") == 10_000 })
	d.answers("127.0.0.7")
	d.says("10000 connections are open")
	if text := d.Log.String(); !strings.Contains(text, "too many connections") {
		t.Errorf("nothing in the log:\n%s", text)
	}
	if d.closed("idle") == 0 {
		t.Error("no idle connection was closed")
	}
}

// TestG40_BusyConnections: an address that has all the connections it may have, none of which is idle.
func TestG40_BusyConnections(t *testing.T) {
	t.Parallel()
	d := startProcess(t, hostileRules, "BACKEND_TYPE=memory", "GRPC_ADDRESS_SHARE=0.0005")
	testkit.Eventually(t, "new connections are closed", func() bool { // soon, unless opening five takes a second
		closeAll := d.idle("127.0.0.1", 10)
		defer closeAll()
		return testkit.Poll(100*time.Millisecond, func() bool { return d.closed("address") > 0 })
	}, d.Log.String)
	d.answers("127.0.0.2")
}

// closed returns how many connections were closed for others, by reason.
func (d *daemon) closed(reason string) float64 {
	d.t.Helper()
	return d.metric(`ratelimitd_connections_closed_total{reason="` + reason + `"}`)
}

// startWithFewFiles starts a server that may have 256 files open.
func startWithFewFiles(t *testing.T, rules string) *daemon {
	t.Helper()
	cmd := exec.Command("sh", "-c", `ulimit -n 256 && exec "$0"`, shipped.Path(t, "ratelimitd")) //nolint:noctx // it ends by a signal
	return startCommand(t, cmd, rules, "BACKEND_TYPE=memory")
}

// TestG41_FewFiles: 400 connections to a server that may have 256 files open.
func TestG41_FewFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rules := filepath.Join(dir, "rules.yaml")
	certstest.Write(t, rules, []byte(hostileRules))
	d := startWithFewFiles(t, dir)
	for i := range 8 {
		d.idle(fmt.Sprintf("127.0.0.%d", 10+i), 50)
	}
	for _, path := range []string{"/livez", "/healthcheck", "/readyz"} {
		if text, code := d.get("HTTP", path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	d.answers("127.0.0.3")
	certstest.Write(t, rules, []byte(strings.Replace(hostileRules, "key: user", "key: reloaded", 1)))
	d.signal(syscall.SIGHUP)
	testkit.Eventually(t, "the rules are loaded again", func() bool {
		text, _ := d.get("DEBUG", "/rlconfig")
		return strings.Contains(text, "reloaded")
	}, d.Log.String)
	if text := d.Log.String(); strings.Contains(text, "too many open files") {
		t.Errorf("files have run out:\n%s", text)
	}
}
