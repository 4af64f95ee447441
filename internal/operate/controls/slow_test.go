package controls

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// slowly forwards replies at rate bytes a second.
func slowly(rate int) func(io.Writer, io.Reader) {
	return func(to io.Writer, from io.Reader) {
		for buf := make([]byte, 4<<10); ; {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			time.Sleep(time.Duration(n) * time.Second / time.Duration(rate))
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
}

// TestSlowLink: on a link of 1 MB/s and 20 ms, one call cannot read all 10,000 controls in time. A replica reads them in
// consecutive calls, within the time that the link needs and in little memory, and Redis gets them back. Other calls succeed
// in the meantime.
func TestSlowLink(t *testing.T) {
	testkit.NotShort(t)
	db := redistest.Start(t)
	reach := testkit.NewProxy(t, db.Addr())
	near := replica(t, redis.Config{URL: reach.Addr()})
	for i := range Max / 100 {
		many(t, near, fmt.Sprint("long-name-of-a-key", i), 100, time.Hour)
	}
	proxy := testkit.NewProxy(t, db.Addr())
	proxy.Latency.Store(int64(20 * time.Millisecond))
	proxy.Replies(slowly(1_000_000))
	before, calls := heap(), scripts(db)
	far := start(t, redis.Config{URL: proxy.Addr()}, io.Discard)
	all := func() bool { return far.Overrides().Load().Count(override.Block) == Max }
	asked := time.Now()
	_ = far.List(t.Context())
	if took := time.Since(asked); took > 10*time.Second { // much less than the total time
		t.Errorf("a list takes %v", took)
	}
	if all() {
		t.Fatal("the link is not slow")
	}
	took := atLength(t, "all controls are in force", all)
	atLength(t, "all can be changed", func() bool {
		_, err := far.Lift(t.Context(), []string{"none"}, true)
		return errors.Is(err, ErrUnknown)
	})
	if n := scripts(db) - calls; n > 300 {
		t.Errorf("Redis was called %d times, want about 50 for 200 controls each", n)
	}
	each := (heap() - before) / Max
	t.Logf("in force after %v; %d bytes each", took, each)
	if each > 4000 {
		t.Errorf("a control takes %d bytes", each)
	}
	if most := proxy.MaxOpen.Load(); most > 6 { // of the side channel and the backend, an old and a new one each
		t.Errorf("%d connections at once", most)
	}

	// Redis loses everything, and only this replica can restore it.
	reach.Target("127.0.0.1:1")
	reach.Cut()
	db.CLI("FLUSHALL")
	took = atLength(t, "Redis has all", func() bool { return count(t, db, ":changed") == Max })
	t.Logf("put back after %v", took)
	if !all() {
		t.Errorf("%d are in force", far.Overrides().Load().Count(override.Block))
	}
}

// atLength waits for slow conditions, longer than usual on a busy machine. It checks rarely, because each check may start a
// process.
func atLength(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > 4*testkit.Patience {
			t.Fatalf("not within %v: %s", 4*testkit.Patience, what)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(begin)
}

// heap returns the bytes in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// scripts returns the number of scripts that Redis has run.
func scripts(db *redistest.Server) (n int) {
	for line := range strings.Lines(db.CLI("INFO", "commandstats")) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			_, _ = fmt.Sscan(strings.Split(rest, ",")[0], &n)
		}
	}
	return n
}
