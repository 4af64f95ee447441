package main

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// TestG57_FramesWithoutCalls: connections of eight addresses fill the port, and send frames that keep them busy but no call. A client with a
// call every 2 s keeps its connection, and clients that connect are answered.
func TestG57_FramesWithoutCalls(t *testing.T) {
	t.Parallel()
	const calls = 5
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(hostileRules))
	d := startWithFewFiles(t, dir)
	slow := rlsv3.NewRateLimitServiceClient(d.from("127.0.0.2"))
	ask := func() {
		t.Helper()
		if _, err := slow.ShouldRateLimit(t.Context(), request("user", "ann")); err != nil {
			t.Errorf("a client with a call every 2 s: %v", err)
		}
	}
	ask()
	done := make(chan struct{})
	var all sync.WaitGroup
	defer all.Wait()
	defer close(done)
	for i := range 8 * 29 {
		all.Go(func() { // comes back as soon as it is closed
			for {
				c := d.http2Conn(fmt.Sprintf("127.0.0.%d", 10+i/29))
				fr := http2.NewFramer(c, c)
				for err := error(nil); err == nil; err = fr.WriteWindowUpdate(0, 1) {
					select {
					case <-done:
						_ = c.Close()
						return
					case <-time.After(400 * time.Millisecond):
					}
				}
				_ = c.Close()
			}
		})
	}
	testkit.Eventually(t, "the port is full", func() bool { return d.metric("ratelimitd_connections") >= 119 })
	for i := range calls {
		time.Sleep(2 * time.Second)
		ask()
		d.answers(fmt.Sprintf("127.0.0.%d", 100+i))
	}
}
