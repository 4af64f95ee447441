package limiter_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const benchRules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
- key: bucket
  rate_limit: {unit: hour, requests_per_unit: 4000000000, algorithm: token_bucket}
- key: seen
  value_to_metric: true
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
- key: name
  rate_limit: {unit: hour, requests_per_unit: 4000000000, name: a}
- key: replacing
  rate_limit: {unit: hour, requests_per_unit: 4000000000, replaces: [{name: a}]}
- key: tenant
  plan_of: tenant
  plans:
    default: {unit: hour, requests_per_unit: 4000000000}
    gold: {unit: hour, requests_per_unit: 4000000000, algorithm: token_bucket}
- key: path
  descriptors:
  - key: method
    descriptors:
    - key: user
      rate_limit: {unit: hour, requests_per_unit: 4000000000}
`

const groupRules = `
domain: groups
quota_group_by: [method, user]
descriptors:
- key: user
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
- key: bucket
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 4000000000}
- key: path
  descriptors:
  - key: method
    descriptors:
    - key: user
      quota_mode: true
      rate_limit: {unit: hour, requests_per_unit: 0}
`

func newBench(tb testing.TB, rules string, c limiter.Config) *limiter.Limiter {
	tb.Helper()
	table := tenants.New(tenants.Config{Files: true})
	c.Plans = table.Plans()
	lines := "t1,gold\nt2,gold,4000000001\nt3,gold,,2200-01-01T00:00:00Z\n"
	if err := table.Load([]tenants.Input{{Name: "tenants.csv", Reader: strings.NewReader(lines)}}); err != nil {
		tb.Fatal(err)
	}
	l := limiter.New(memory.New(memory.Config{}), stats.New(), c)
	load(tb, l, rules, groupRules)
	return l
}

func load(tb testing.TB, l *limiter.Limiter, files ...string) {
	tb.Helper()
	l.SetRules(rulefiletest.Load(tb, files...))
}

// hot returns requests that must be decided without allocations.
func hot() map[string]*limiter.Request {
	one := func(text string) *limiter.Request {
		return &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{{Entries: entries(text)}}}
	}
	override := one("user=o1")
	override.Descriptors[0].HasOverride = true
	override.Descriptors[0].Override = descriptors.Override{RequestsPerUnit: 4000000000, Unit: descriptors.Hour}
	replaced := one("name=x")
	replaced.Descriptors = append(replaced.Descriptors, one("replacing=x").Descriptors...)
	three := one("user=u1")
	three.Descriptors = append(three.Descriptors, one("bucket=b1").Descriptors[0], one("path=/a,method=GET,user=u1").Descriptors[0])
	groups := three.Descriptors
	groups = append(groups[:3:3], one("user=u2").Descriptors[0])
	stranger := one("user=u1")
	stranger.Domain = []byte("nowhere")
	return map[string]*limiter.Request{
		"one":             one("user=u1"),
		"bucket":          one("bucket=b1"),
		"value_to_metric": one("seen=v1"),
		"override":        override,
		"replaces":        replaced,
		"three":           three,
		"groups":          {Domain: []byte("groups"), Descriptors: groups},
		"unknown_domain":  stranger,
		"unmatched":       one("other=1"),
		"no_plan":         one("tenant=t0"),
		"plan":            one("tenant=t1"),
		"plan_and_number": one("tenant=t2"),
		"plan_with_end":   one("tenant=t3"),
	}
}

func TestDecideDoesNotAllocate(t *testing.T) {
	unwatched := observe.New(func(context.Context) string { return "" })
	for _, c := range []limiter.Config{{}, {StopWhenOver: true}, {Observer: unwatched, Missing: func(string, string, string) {}}} {
		l := newBench(t, benchRules, c)
		for name, r := range hot() {
			t.Run(fmt.Sprint(name, c.StopWhenOver, c.Observer != nil), func(t *testing.T) {
				var scratch limiter.Scratch
				n := testing.AllocsPerRun(100, func() {
					if _, err := l.Decide(t.Context(), r, &scratch); err != nil {
						t.Fatal(err)
					}
				})
				most := 0.0
				if name == "override" { // validating its limit may allocate once
					most = 1
				}
				if n > most {
					t.Errorf("a decision allocates %v times", n)
				}
			})
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	l := newBench(b, benchRules, limiter.Config{})
	for name, r := range hot() {
		b.Run(name, func(b *testing.B) {
			var scratch limiter.Scratch
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Decide(b.Context(), r, &scratch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("keys", func(b *testing.B) {
		var seed atomic.Uint64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			var scratch limiter.Scratch
			r := hot()["one"]
			i := seed.Add(1) * 7919
			value := make([]byte, 0, 16)
			for pb.Next() {
				i = (i*6364136223846793005 + 1442695040888963407) % 100_000
				value = strconv.AppendUint(value[:0], i, 10)
				r.Descriptors[0].Entries[0].Value = value
				if _, err := l.Decide(b.Context(), r, &scratch); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
