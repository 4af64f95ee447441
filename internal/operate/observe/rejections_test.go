package observe

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestRejectionsAreLogged: a line a minute for each rule that rejects, those that reject most first, and one for the rest.
func TestRejectionsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rules strings.Builder
		rules.WriteString("domain: shop\ndescriptors:\n")
		for i := range rejectionsMost + 2 {
			fmt.Fprintf(&rules, "  - {key: a%02d, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
		}
		set, _, err := descriptors.Load([]descriptors.Source{{Name: "shop.yaml", Data: []byte(rules.String())}}, descriptors.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{})
		l.SetRules(set)
		reject := func(key string, times int) {
			r := &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{
				{Entries: []descriptors.Entry{{Key: []byte(key), Value: []byte("secret")}}},
			}}
			for range times {
				if _, err := l.Decide(t.Context(), r, new(limiter.Scratch)); err != nil {
					t.Error(err)
				}
			}
		}
		var log testkit.Buffer
		begun := time.Now()
		o := &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Duration("at", time.Since(begun))
			}
			return a
		}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- LogRejections(slog.New(slog.NewTextHandler(&log, o)), l.Tallies).Run(ctx) }()
		time.Sleep(rejectionsEvery / 2) // so that nothing happens when the log is written
		reject("a01", 3)
		reject("a00", 5)
		time.Sleep(2 * rejectionsEvery) // in the second minute nothing is rejected
		reject("a00", 1)
		time.Sleep(rejectionsEvery)
		l.SetRules(set) // as a reload does
		for i := range rejectionsMost + 2 {
			reject(fmt.Sprintf("a%02d", i), 3)
		}
		time.Sleep(rejectionsEvery)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lines := strings.SplitAfter(log.String(), "\n")
		want := `at=1m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=shop.yaml:3 limit="1 per hour" requests=4
at=1m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a01 place=shop.yaml:4 limit="1 per hour" requests=2
at=3m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=shop.yaml:3 limit="1 per hour" requests=1
at=4m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=shop.yaml:3 limit="1 per hour" requests=3
at=4m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a01 place=shop.yaml:4 limit="1 per hour" requests=3
`
		if d := cmp.Diff(want, strings.Join(lines[:5], "")); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if got, want := lines[len(lines)-2], "at=4m0s level=INFO msg=\"more rules rejected requests in the last minute\" rules=2 requests=4\n"; got != want {
			t.Errorf("the last line is %q, want %q", got, want)
		}
		if n := len(lines) - 1; n != 3+rejectionsMost+1 {
			t.Errorf("%d lines, want %d", n, 3+rejectionsMost+1)
		}
	})
}
