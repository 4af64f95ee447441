package tracing_test

import (
	"context"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/tracingtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// BenchmarkDecide measures the cost of the spans around the limiter and the store. With tracing off there is nothing
// around them.
func BenchmarkDecide(b *testing.B) {
	c, err := tracingtest.Start("http")
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	r := &limiter.Request{
		Domain:      []byte("shop"),
		Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{{Key: []byte("user"), Value: []byte("ann")}}}},
	}
	type decider interface {
		Decide(ctx context.Context, r *limiter.Request, p *limiter.Scratch) (*limiter.Verdict, error)
	}
	run := func(b *testing.B, store backend.Backend, around func(*limiter.Limiter) decider) {
		b.Helper()
		b.ReportAllocs()
		l := limiter.New(store, stats.New(), limiter.Config{})
		l.SetRules(rulefiletest.Load(b, rules))
		d, p := around(l), new(limiter.Scratch)
		for b.Loop() {
			if _, err := d.Decide(b.Context(), r, p); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("off", func(b *testing.B) {
		run(b, memory.New(memory.Config{}), func(l *limiter.Limiter) decider { return l })
	})
	for name, rate := range map[string]float64{"not sampled": 0, "sampled": 1} {
		b.Run(name, func(b *testing.B) {
			t, err := tracing.New(b.Context(), tracing.Config{Rate: rate})
			if err != nil {
				b.Fatal(err)
			}
			run(b, t.Backend(memory.New(memory.Config{}), tracing.Store{}), func(l *limiter.Limiter) decider { return t.Decider(l) })
			ctx, cancel := context.WithCancel(b.Context())
			cancel()
			if err := t.Run(ctx); err != nil {
				b.Error(err)
			}
		})
	}
}
