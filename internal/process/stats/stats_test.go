package stats

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCounterNeverWraps(t *testing.T) {
	var c Counter
	c.Add(3)
	c.Add(0)
	if got := c.Load(); got != 3 {
		t.Fatalf("after 3 and 0 the counter is at %d", got)
	}
	before := uint64(0)
	for range 5000 {
		c.Add(math.MaxUint64)
		if now := c.Load(); now < before {
			t.Fatalf("the counter fell from %d to %d", before, now)
		} else {
			before = now
		}
	}
	if before != most {
		t.Errorf("the counter ends at %d, want %d", before, uint64(most))
	}
}

func TestCounterOfManyGoroutines(t *testing.T) {
	r := New()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				r.Rule(NewKey("d", fmt.Sprint(i%10))).TotalHits.Add(1)
				r.Counter(XDSEventsTotal, fmt.Sprint(i%10)).Add(1)
				r.ObserveCall(fmt.Sprint("m", i%10), 0.001)
			}
		})
	}
	wg.Wait()
	for i := range 10 {
		if n := r.Rule(NewKey("d", fmt.Sprint(i))).TotalHits.Load(); n != 800 {
			t.Errorf("rule %d counts %d hits, want 800", i, n)
		}
		if n := r.Counter(XDSEventsTotal, fmt.Sprint(i)).Load(); n != 800 {
			t.Errorf("counter %d is at %d, want 800", i, n)
		}
		if n := (*r.calls.Load())[fmt.Sprint("m", i)].count(); n != 800 {
			t.Errorf("method %d has %d calls, want 800", i, n)
		}
	}
}

func TestNewKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		levels []string
		want   Key
	}{
		{"no level", nil, Key{Text: "shop", Domain: "shop"}},
		{"one level", []string{"user_u1"}, Key{Text: "shop.user_u1", Domain: "shop", Key1: "user_u1"}},
		{"what lies deeper is in no label", []string{"a", "b_1", "c", "d"}, Key{Text: "shop.a.b_1.c.d", Domain: "shop", Key1: "a", Key2: "b_1"}},
		{"dots stay where they are", []string{"host_a.example.com", "v_1.2"}, Key{Text: "shop.host_a.example.com.v_1.2", Domain: "shop", Key1: "host_a.example.com", Key2: "v_1.2"}},
		{"what statsd gives a meaning to", []string{"a_x:1|c"}, Key{Text: "shop.a_x_1_c", Domain: "shop", Key1: "a_x_1_c"}},
		{"an address", []string{"remote_address_10.0.0.255"}, Key{Text: "shop.remote_address_10_0_0_255", Domain: "shop", Key1: "remote_address_10_0_0_255"}},
		{"bytes that are no UTF-8", []string{"a_\xff\xfe"}, Key{Text: "shop.a_\uFFFD", Domain: "shop", Key1: "a_\uFFFD"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, NewKey("shop", c.levels...)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestSameCounter(t *testing.T) {
	r := New()
	first := r.Rule(NewKey("d", "a"))
	if again := r.Rule(NewKey("d", "a")); first != again {
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
	if n := (*r.calls.Load())[Other].count(); n != 9*maxMethods {
		t.Errorf("%d calls went to %s, want %d", n, Other, 9*maxMethods)
	}
}

// filled returns a registry with values of every kind.
func filled() *Registry {
	r := New()
	r.Rule(NewKey("shop", "user")).TotalHits.Add(5)
	r.Rule(NewKey("shop", "user")).WithinLimit.Add(3)
	r.Rule(NewKey("shop", "user")).OverLimit.Add(2)
	deep := r.Rule(NewKey("shop", "a", "b_1", "c"))
	deep.TotalHits.Add(1)
	deep.OverLimit.Add(1)
	deep.OverLimitWithLocalCache.Add(1)
	deep.ShadowMode.Add(1)
	r.Rule(NewKey("shop", "a", "b_1", "d")).TotalHits.Add(10)
	r.Rule(NewKey("shop", "a", "b_1")).NearLimit.Add(7)
	r.Rule(NewKey("my.domain", "host_a.b", "x\n\"y")).TotalNegativeHits.Add(4)
	r.Rule(NewKey("shop", "free")).UnlimitedHits.Add(6)
	r.Rule(NewKey("shop", "bad_\xff")).TotalHits.Add(1)
	r.Rule(NewKey("shop", "bad_\xfe")).TotalHits.Add(1)
	r.Rule(NewKey("shop", "never"))
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
