package observe

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestSheddingIsLogged: one line when policies begin to decide, one when calls begin to be shed before they are read, which is an error
// whatever policies say, and one when nothing has been shed for ten seconds, with how many it were in all, by reason.
func TestSheddingIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		begun := time.Now()
		o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Duration("at", time.Since(begun))
			}
			return a
		}}
		var now atomic.Pointer[Shed]
		now.Store(&Shed{Shed: limiter.Shed{Process: 5}}) // of which there was a line before
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- LogShedding(slog.New(slog.NewTextHandler(&log, o)), func() Shed { return *now.Load() }).Run(ctx)
		}()
		time.Sleep(time.Hour + time.Second/2)
		for i := range uint64(30) { // a surge with gaps of less than ten seconds
			now.Store(&Shed{Shed: limiter.Shed{Process: 7 + i, Store: i}, Calls: i / 5})
			time.Sleep(9 * time.Second)
		}
		time.Sleep(time.Minute)
		now.Store(&Shed{Shed: limiter.Shed{Process: 36, Store: 30}, Calls: 5}) // a single one
		time.Sleep(time.Minute)
		now.Store(&Shed{Shed: limiter.Shed{Process: 36, Store: 30}, Calls: 7}) // none by the fallback
		time.Sleep(time.Minute)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := `
at=1h0m1s level=WARN msg="overload: on_failure decides requests that could not be answered in time" requests=2 process=2 store=0 calls=0
at=1h0m46s level=WARN msg="overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; Envoy lets their requests pass, unless failure_mode_deny is true" requests=13 process=7 store=5 calls=1
at=1h4m32s level=INFO msg="the overload has ended" requests=65 process=31 store=29 calls=5 seconds=262
at=1h5m31s level=WARN msg="overload: on_failure decides requests that could not be answered in time" requests=1 process=0 store=1 calls=0
at=1h5m41s level=INFO msg="the overload has ended" requests=1 process=0 store=1 calls=0 seconds=1
at=1h6m31s level=WARN msg="overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; Envoy lets their requests pass, unless failure_mode_deny is true" requests=2 process=0 store=0 calls=2
at=1h6m41s level=INFO msg="the overload has ended" requests=2 process=0 store=0 calls=2 seconds=1
`
		if d := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(log.String())); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
	})
}
