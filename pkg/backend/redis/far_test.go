package redis

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

const (
	ms    = time.Millisecond
	envoy = 20 * ms // Envoy's timeout
)

// TestRoomForBatches checks that a distant node gets more batches than usual, unless those in progress keep it busy long enough.
func TestRoomForBatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took, each   time.Duration // of recent batches
		most, flying int32
		sent, weight int64
		room         bool
	}{
		"the usual ones":             {ms, 0, 2, 1, 32, 0, true},
		"more than these":            {ms, 0, 5, 2, 32, 0, false},
		"far away":                   {5 * ms, 0, 5, 4, 100, 0, true},
		"all writers are busy":       {5 * ms, 0, 5, 5, 100, 0, false},
		"operations take as long":    {5 * ms, ms / 20, 5, 4, 128, 0, false},
		"heavy ones do":              {5 * ms, 0, 5, 4, 100, 6000, false},
		"heavy ones, and as usual":   {5 * ms, 0, 5, 1, 100, 6000, true},
		"one connection at most":     {5 * ms, 0, 1, 0, 0, 0, true},
		"one connection, and in use": {5 * ms, 0, 1, 1, 1, 0, false},
	} {
		n := &node{}
		for i := range 200 {
			ops := 1 + i%60
			now := time.Now()
			n.pace.Done(now.Add(-c.took-time.Duration(ops)*c.each), now, ops, false)
		}
		n.most = c.most
		n.flying.Store(c.flying)
		n.sent.Store(c.sent)
		n.weight.Store(c.weight)
		if got := n.room(); got != c.room {
			t.Errorf("%s: there is room: %t, want %t (the way takes %v, and 100 operations %v)",
				name, got, c.room, n.pace.Estimate().Way(), n.pace.Estimate().Of(100))
		}
	}
}

// TestUnusedConnections checks that further connections to a server that is gone are closed soon, even if they are unused.
func TestUnusedConnections(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	p.Latency.Store(int64(2500 * time.Microsecond)) // in each direction
	b := run(t, Config{URL: p.Addr(), DialTimeout: slow}, true)
	for range 2 {
		testkit.Eventually(t, "more connections than usual", func() bool {
			l := newLoad(b, 2000, envoy)
			time.Sleep(200 * time.Millisecond)
			l.end()
			return b.Connections() > nearWriters
		})
		far := b.Connections()
		s.Kill()
		took := testkit.Eventually(t, "no connections", func() bool { return b.Connections() == 0 && b.main.one.breaker.Down() != nil })
		if took > unusedFor/2 {
			t.Errorf("%d unused connections to a server that is gone were kept for %v", far-nearWriters, took)
		}
		s.Restart()
	}
}

// TestSlowNode checks that an overloaded node's calls that would not be answered in time are shed immediately, and that the others are
// answered.
func TestSlowNode(t *testing.T) {
	t.Parallel()
	const perByte = 80 * time.Microsecond // of replies: about 300 operations per second
	s := redistest.Start(t)
	p := testkit.NewProxy(t, s.Addr())
	b := run(t, Config{URL: p.Addr()}, true)
	var one sync.Mutex // serializes all connections
	p.Replies(func(to io.Writer, from io.Reader) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			if n < 1000 { // not the replies during connecting
				one.Lock()
				time.Sleep(time.Duration(n) * perByte)
				one.Unlock()
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	p.Cut()
	testkit.Eventually(t, "the usual connections", func() bool { return b.Connections() == nearWriters })
	testkit.Eventually(t, "a second in which those who fail are told early", func() bool {
		l := newLoad(b, 600, envoy) // few enough for a busy machine
		time.Sleep(time.Second)
		l.end()
		found := failed(l.answers)
		t.Logf("%d calls, failed %v, p99 %v; an operation waits for %v", len(l.answers), found, p99(l.answers), b.Waits())
		return found[remote.Overload]*4 > len(l.answers) && found[remote.Timeout]*4 < found[remote.Overload] &&
			failures(l.answers)*4 < 3*len(l.answers)
	})
}
