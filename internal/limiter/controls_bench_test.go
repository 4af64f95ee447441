package limiter_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// given is a store that has notes, for there is no quick way to put 10,000 controls in force one by one.
type given []backend.Note

func (g given) Poll(context.Context, backend.Version, bool) (backend.Notes, error) {
	return backend.Notes{Version: backend.Version{Epoch: "e", Revision: 1}, Changed: g}, nil
}
func (given) Put(context.Context, []backend.Note, int) ([]int64, error) { panic("nothing is set") }
func (given) PutBack(context.Context, []backend.Note, int64) error      { panic("nothing is lost") }
func (given) Replicas(context.Context) ([]string, error)                { return nil, nil }
func (given) Name() string                                              { return "" }
func (given) Leave(context.Context)                                     {}

// manyControls returns n blocks, each of another user, path or bucket than those of the requests in hot.
func manyControls(tb testing.TB, n int) *controls.Controls {
	tb.Helper()
	if n == 0 {
		return controls.New(controls.Config{})
	}
	text := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	var all given
	for i := range n {
		entries := fmt.Sprintf(`["%s","%s"]`, text([]string{"user", "path", "bucket"}[i%3]), text(fmt.Sprint("other", i)))
		all = append(all, backend.Note{
			ID: fmt.Sprint(i), At: 1, Ends: time.Now().Add(time.Hour),
			Text: fmt.Appendf(nil, `{"kind":"block","domain":"%s","entries":[%s]}`, text("shop"), entries),
		})
	}
	c := controls.New(controls.Config{Store: all})
	testkit.Run(tb, c.Run)
	<-c.First()
	if got := c.Table().Count(controls.Block); got != n {
		tb.Fatalf("%d controls are in force, want %d", got, n)
	}
	return c
}

// BenchmarkControls is what controls that are about others cost a request: none, one, and as many as there may be.
func BenchmarkControls(b *testing.B) {
	for _, n := range []int{0, 1, controls.Max} {
		l := newBench(b, benchRules, limiter.Config{Controls: manyControls(b, n)})
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
