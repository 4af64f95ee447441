package limiter_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// given is a store with initial entries, because putting 10,000 controls in force one by one is slow.
type given []replicated.Entry

func (g given) Changes(context.Context, replicated.Revision, string) (replicated.Changes, error) {
	return replicated.Changes{Incremental: true, Revision: replicated.Revision{Number: 1, Tag: "t"}, Now: time.Now().UnixMicro(), Entries: g}, nil
}

func (given) Put(context.Context, replicated.Revision, []replicated.Entry, bool) (replicated.Revision, error) {
	panic("nothing is set")
}

func (given) Replicas(context.Context) ([]string, error) { return nil, nil }
func (given) Leave(context.Context)                      {}

// manyControls returns n blocks, none of which matches the requests in hot.
func manyControls(tb testing.TB, n int) *controls.Controls {
	tb.Helper()
	if n == 0 {
		return controls.New(controls.Config{})
	}
	text := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	var all given
	for i := range n {
		entries := fmt.Sprintf(`["%s","%s"]`, text([]string{"user", "path", "bucket"}[i%3]), text(fmt.Sprint("other", i)))
		until := time.Now().Add(time.Hour).UnixMilli()
		all = append(all, replicated.Entry{
			Key: fmt.Sprint(i), Created: 1, Expires: until,
			Text: fmt.Sprintf(`{"id":"%d","kind":"block","domain":"%s","entries":[%s],"until":%d}`, i, text("shop"), entries, until),
		})
	}
	c := controls.New(controls.Config{Store: all})
	testkit.Run(tb, c.Run)
	<-c.First()
	if got := c.Overrides().Load().Count(override.Block); got != n {
		tb.Fatalf("%d controls are in force, want %d", got, n)
	}
	return c
}

// BenchmarkControls measures a request with controls that do not match it: none, one, and the maximum number.
func BenchmarkControls(b *testing.B) {
	for _, n := range []int{0, 1, controls.Max} {
		l := newBench(b, benchRules, limiter.Config{Overrides: manyControls(b, n).Overrides()})
		for _, name := range []string{"one", "three", "unmatched"} {
			r := hot()[name]
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				var scratch limiter.Scratch
				b.ReportAllocs()
				for b.Loop() {
					if _, err := l.Decide(b.Context(), r, &scratch); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
