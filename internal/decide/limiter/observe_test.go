package limiter_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

const observedRules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 3}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: free
  rate_limit: {unlimited: true}
- key: name
  rate_limit: {unit: hour, requests_per_unit: 3, name: a}
- key: replacing
  rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: a}]}
- key: budget
  rate_limit: {unit: hour, requests_per_unit: 3, late_charge: true}
`

// observing returns a limiter with an observer, and a function that returns the observed decisions of this test.
func observing(t *testing.T) (l *limiter.Limiter, all *observe.Observer, lines func() []string) {
	t.Helper()
	all = observe.New(func(context.Context) string { return "me" })
	l = limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Observer: all})
	w, err := all.Watch(observe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return l, all, func() (out []string) {
		for len(w.Lines()) > 0 {
			x := <-w.Lines()
			line := fmt.Sprintf("%s %s %s rule=%q outcome=%v over=%t source=%d hits=%d left=%d took=%v", x.Caller, x.Domain, x.Entries, x.Rule,
				x.Outcome, x.Over, x.By, x.Hits, x.Left, x.Took)
			if x.Err != nil {
				line += " error=" + x.Err.Error()
			}
			out = append(out, line)
		}
		return out
	}
}

func TestObserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all, lines := observing(t)
		var scratch limiter.Scratch
		ask := func(domain string, hits uint32, descriptors ...string) {
			r := &limiter.Request{Domain: []byte(domain), Hits: hits, Read: time.Now()}
			for _, d := range descriptors {
				r.Descriptors = append(r.Descriptors, limiter.Descriptor{Entries: entries(strings.TrimPrefix(d, "-")), Negative: strings.HasPrefix(d, "-")})
			}
			time.Sleep(time.Millisecond)
			_, _ = l.Decide(t.Context(), r, &scratch)
		}
		look := func(domain, descriptor string, times int) {
			for range times {
				time.Sleep(time.Millisecond)
				r := &limiter.Request{
					Domain: []byte(domain), Descriptors: []limiter.Descriptor{{Entries: entries(descriptor), HasHits: true}},
					Read: time.Now().Add(-time.Millisecond),
				}
				_, _ = l.Decide(t.Context(), r, &scratch)
			}
		}
		for _, step := range []struct {
			ask  func()
			want []string
		}{
			{func() { ask("shop", 1, "user=ann") }, []string{`me shop [{user ann}] rule="" outcome=failed over=false source=0 hits=1 left=0 took=1ms error=no rate limit configuration loaded`}},
			{func() { load(t, l, observedRules) }, nil},
			{func() { ask("shop", 2, "user=ann") }, []string{`me shop [{user ann}] rule="shop.user" outcome=admitted over=false source=1 hits=2 left=1 took=1ms`}},
			{func() { ask("shop", 2, "user=ann", "user=bob") }, []string{
				`me shop [{user ann}] rule="shop.user" outcome=rejected over=true source=1 hits=2 left=0 took=1ms`,
				`me shop [{user bob}] rule="shop.user" outcome=admitted over=true source=1 hits=2 left=1 took=1ms`,
			}},
			{func() { ask("shop", 2, "-user=ann") }, []string{`me shop [{user ann}] rule="shop.user" outcome=admitted over=false source=1 hits=2 left=1 took=1ms`}},
			{func() { ask("shop", 2, "shadow=x") }, []string{`me shop [{shadow x}] rule="shop.shadow" outcome=shadowed over=false source=1 hits=2 left=0 took=1ms`}},
			{func() { ask("shop", 5, "budget=x") }, []string{`me shop [{budget x}] rule="shop.budget" outcome=late charge over=true source=1 hits=5 left=0 took=1ms`}},
			{func() { look("shop", "budget=x", 3) }, []string{
				`me shop [{budget x}] rule="shop.budget" outcome=rejected over=true source=1 hits=0 left=0 took=1ms`,
				`me shop [{budget x}] rule="shop.budget" outcome=rejected over=true source=1 hits=0 left=0 took=1ms`,
				`me shop [{budget x}] rule="shop.budget" outcome=rejected over=true source=1 hits=0 left=0 took=1ms`,
			}},
			{func() { ask("shop", 1, "free=x") }, []string{`me shop [{free x}] rule="shop.free" outcome=unlimited over=false source=0 hits=1 left=0 took=1ms`}},
			{func() { ask("shop", 1, "name=x", "replacing=x") }, []string{
				`me shop [{name x}] rule="shop.name" outcome=replaced over=false source=0 hits=1 left=0 took=1ms`,
				`me shop [{replacing x}] rule="shop.replacing" outcome=admitted over=false source=1 hits=1 left=2 took=1ms`,
			}},
			{func() { ask("shop", 1, "other=x") }, []string{`me shop [{other x}] rule="" outcome=no limit over=false source=0 hits=1 left=0 took=1ms`}},
			{func() { ask("nowhere", 1, "user=x") }, []string{`me nowhere [{user x}] rule="" outcome=no limit over=false source=0 hits=1 left=0 took=1ms`}},
			{func() { ask("shop", 1) }, []string{`me shop [] rule="" outcome=failed over=false source=0 hits=0 left=0 took=0s error=rate limit descriptor list must not be empty`}},
			{func() { ask("shop", 1, "user=cleo,"+strings.Repeat("x=y,", limiter.MaxEntries)+"x=y") }, nil}, // checked below
		} {
			step.ask()
			got := lines()
			if step.want == nil && len(got) == 1 && strings.HasSuffix(got[0], "error="+limiter.ErrTooManyEntries.Error()) {
				continue
			}
			if !slices.Equal(got, step.want) {
				t.Errorf("the lines are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(step.want, "\n"))
			}
		}
		busy := all.Top(observe.Query{Filter: observe.Filter{Rule: "shop.user"}}).Rows
		if len(busy) != 2 || string(busy[0].Entries[0].Value) != "ann" || busy[0].Counts != [2]observe.Count{{Hits: 4}, {Hits: 1}} || busy[1].Counts[observe.Rejected].Hits != 0 {
			t.Errorf("the busiest users are %+v", busy)
		}
		rejected := all.Top(observe.Query{By: observe.Rejected}).Rows
		if len(rejected) != 2 || string(rejected[0].Entries[0].Key) != "budget" || rejected[0].Counts != [2]observe.Count{{Hits: 5}, {Hits: 3}} || string(rejected[1].Entries[0].Value) != "ann" {
			t.Errorf("the most rejected are %+v", rejected)
		}
	})
}

// BenchmarkObserve measures a request without an observer's interest, and one that Top counts.
func BenchmarkObserve(b *testing.B) {
	unwatched := observe.New(func(context.Context) string { return "" })
	for name, c := range map[string]limiter.Config{"off": {}, "unwatched": {Observer: unwatched}} {
		b.Run(name, func(b *testing.B) {
			l, r := newBench(b, benchRules, c), hot()["one"]
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

// TestObservedWithoutStreams checks that observed decisions omit the value that names a reservation, so that all requests of a user are
// equal.
func TestObservedWithoutStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, all, lines := observing(t)
		load(t, l, `
domain: llm
descriptors:
- key: user
  descriptors:
  - key: stream
    rate_limit: {unit: hour, requests_per_unit: 1000, reserve: {by: stream, estimate: 40}}
`)
		var scratch limiter.Scratch
		for _, hits := range []uint64{0, 30} {
			for _, stream := range []string{"secret1", "secret2"} {
				r := &limiter.Request{Domain: []byte("llm"), Descriptors: []limiter.Descriptor{{
					Entries: entries("user=ann,stream=" + stream), HasHits: true, Hits: hits,
				}}}
				if _, err := l.Decide(t.Context(), r, &scratch); err != nil {
					t.Fatal(err)
				}
			}
		}
		seen := lines()
		if text := strings.Join(seen, "\n"); len(seen) != 4 || strings.Contains(text, "secret") || strings.Contains(text, "stream ") {
			t.Errorf("watch shows %d decisions, want 4 without the stream:\n%s", len(seen), text)
		}
		rows := all.Top(observe.Query{}).Rows
		if len(rows) != 1 || len(rows[0].Entries) != 1 || string(rows[0].Entries[0].Value) != "ann" {
			t.Errorf("top shows %+v, want one row of ann", rows)
		}
	})
}
