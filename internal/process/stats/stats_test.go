package stats

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

func TestCounterOfManyGoroutines(t *testing.T) {
	r := New()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				r.Rule(count.NewKey("d", fmt.Sprint(i%10))).TotalHits.Add(1)
				r.Counter(XDSEventsTotal, fmt.Sprint(i%10)).Add(1)
				r.ObserveCall(fmt.Sprint("m", i%10), 0.001)
			}
		})
	}
	wg.Wait()
	for i := range 10 {
		if n := r.Rule(count.NewKey("d", fmt.Sprint(i))).TotalHits.Load(); n != 800 {
			t.Errorf("rule %d counts %d hits, want 800", i, n)
		}
		if n := r.Counter(XDSEventsTotal, fmt.Sprint(i)).Load(); n != 800 {
			t.Errorf("counter %d is at %d, want 800", i, n)
		}
		if n := (*r.calls.Load())[fmt.Sprint("m", i)].read().GetSampleCount(); n != 800 {
			t.Errorf("method %d has %d calls, want 800", i, n)
		}
	}
}

func TestSameCounter(t *testing.T) {
	r := New()
	first := r.Rule(count.NewKey("d", "a"))
	if again := r.Rule(count.NewKey("d", "a")); first != again {
		t.Error("one key has two rules")
	}
	ignored := r.Counter(OverrideIgnoredTotal, "1", "2")
	if again := r.Counter(OverrideIgnoredTotal, "1", "2"); ignored != again {
		t.Error("the same values have two counters")
	}
	if r.Counter(XDSEventsTotal, "1.2") == r.Counter(XDSEventsTotal, "1_2") {
		t.Error("two values of a label have one counter")
	}
}

func TestMethodsAreBounded(t *testing.T) {
	r := New()
	for i := range 10 * maxMethods {
		r.ObserveCall(fmt.Sprint("method", i), 0.001)
	}
	if n := len(*r.calls.Load()); n > maxMethods+1 {
		t.Errorf("%d methods are told apart", n)
	}
	if n := (*r.calls.Load())[count.Other].read().GetSampleCount(); n != 9*maxMethods {
		t.Errorf("%d calls went to %s, want %d", n, count.Other, 9*maxMethods)
	}
}

// filled returns a registry with values of every kind.
func filled() *Registry {
	r := New()
	r.Rule(count.NewKey("shop", "user")).TotalHits.Add(5)
	r.Rule(count.NewKey("shop", "user")).WithinLimit.Add(3)
	r.Rule(count.NewKey("shop", "user")).OverLimit.Add(2)
	deep := r.Rule(count.NewKey("shop", "a", "b_1", "c"))
	deep.TotalHits.Add(1)
	deep.OverLimit.Add(1)
	deep.OverLimitWithLocalCache.Add(1)
	deep.ShadowMode.Add(1)
	r.Rule(count.NewKey("shop", "a", "b_1", "d")).TotalHits.Add(10)
	r.Rule(count.NewKey("shop", "a", "b_1")).NearLimit.Add(7)
	r.Rule(count.NewKey("my.domain", "host_a.b", "x\n\"y")).TotalNegativeHits.Add(4)
	r.Rule(count.NewKey("shop", "free")).UnlimitedHits.Add(6)
	r.Rule(count.NewKey("shop", "bad_\xff")).TotalHits.Add(1)
	r.Rule(count.NewKey("shop", "bad_\xfe")).TotalHits.Add(1)
	r.Rule(count.NewKey("shop", "never"))
	r.Counter(ConfigLoadSuccess).Add(2)
	r.Counter(ConfigLoadError)
	r.Counter(ShouldRateLimitError, "redis_error").Add(3)
	r.Counter(DomainNotFound, "no-where").Add(1)
	r.Counter(DomainNotFound, "no.where").Add(1)
	r.Counter(OverrideIgnoredTotal, "my.domain", "invalid").Add(1)
	r.Counter(PanicsTotal)
	r.Gauge(MemoryKeys, func() float64 { return 1.5 })
	r.Gauge(BackendBreakerState, func() float64 { return 1 }, "y")
	r.Gauge(BackendBreakerState, func() float64 { return 2 }, "y")
	r.ObserveCall("ShouldRateLimit", 0.003)
	r.ObserveCall("ShouldRateLimit", 0.02)
	return r
}

func TestWriteText(t *testing.T) {
	want := `
ratelimit.service.call.should_rate_limit.redis_error: 3
ratelimit.service.config_load_error: 0
ratelimit.service.config_load_success: 2
ratelimit.service.rate_limit.my.domain.host_a.b.x_"y.total_negative_hits: 4
ratelimit.service.rate_limit.no-where.domain_not_found: 1
ratelimit.service.rate_limit.no.where.domain_not_found: 1
ratelimit.service.rate_limit.shop.a.b_1.c.over_limit: 1
ratelimit.service.rate_limit.shop.a.b_1.c.over_limit_with_local_cache: 1
ratelimit.service.rate_limit.shop.a.b_1.c.shadow_mode: 1
ratelimit.service.rate_limit.shop.a.b_1.c.total_hits: 1
ratelimit.service.rate_limit.shop.a.b_1.d.total_hits: 10
ratelimit.service.rate_limit.shop.a.b_1.near_limit: 7
ratelimit.service.rate_limit.shop.bad_` + "\uFFFD" + `.total_hits: 2
ratelimit.service.rate_limit.shop.user.over_limit: 2
ratelimit.service.rate_limit.shop.user.total_hits: 5
ratelimit.service.rate_limit.shop.user.within_limit: 3
ratelimit_server.ShouldRateLimit.total_requests: 2
ratelimitd.backend_breaker_state.__node=y: 2
ratelimitd.memory.keys: 1.5
ratelimitd.override_ignored_total.__domain=my_domain.__reason=invalid: 1
ratelimitd.panics_total: 0
ratelimitd.unlimited_hits.shop.free: 6
`
	var b bytes.Buffer
	if err := filled().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimPrefix(want, "\n"), b.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func BenchmarkObserveCall(b *testing.B) {
	r := New()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			r.ObserveCall("ShouldRateLimit", 0.0003)
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				r.ObserveCall("ShouldRateLimit", 0.0003)
			}
		})
	})
}
