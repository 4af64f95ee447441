package netlimit

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestConnectionsAreBounded: after ten thousand connections, the next one waits until one closes or has been idle for a
// second.
func TestConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := testkit.NewPipes()
		l := Listen(p, Config{})
		accepted := make(chan net.Conn, MaxConnections+2)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		})
		for range MaxConnections {
			p.Dial()
		}
		wg.Go(func() { p.Dial() })
		synctest.Wait()
		if n := len(accepted); n != MaxConnections {
			t.Errorf("%d connections at a time, want %d", n, MaxConnections)
		}
		if err := (<-accepted).Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(accepted); n != MaxConnections {
			t.Errorf("after one has closed there are %d, want %d", n, MaxConnections)
		}
		wg.Go(func() { p.Dial() })
		time.Sleep(2 * idleAfter)
		synctest.Wait()
		if n := len(accepted); n != MaxConnections+1 || l.Open() != MaxConnections {
			t.Errorf("after they have been idle, %d were accepted and %d are open, want the new one in the place of another", n, l.Open())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}
