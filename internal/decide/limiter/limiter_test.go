package limiter_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// fixture is a limiter whose clock stands still.
type fixture struct {
	*limiter.Limiter
	stats *stats.Registry
}

// still returns a memory backend whose clock stands still.
func still() *memory.Backend {
	return memory.New(memory.Config{Now: func() engine.Micros { return 1e15 }})
}

func newFixture(tb testing.TB, rules string, c limiter.Config) fixture {
	tb.Helper()
	r := stats.New()
	l := limiter.New(still(), r, c)
	load(tb, l, rules)
	return fixture{l, r}
}

func (f fixture) decide(tb testing.TB, r *limiter.Request) *limiter.Verdict {
	tb.Helper()
	var scratch limiter.Scratch
	v, err := f.Decide(tb.Context(), r, &scratch)
	if err != nil {
		tb.Fatal(err)
	}
	return v
}

// series returns the number and the size of the rules' series in Prometheus' format.
func (f fixture) series(tb testing.TB) (n, size int) {
	tb.Helper()
	w := httptest.NewRecorder()
	f.stats.Handler(stats.PrometheusConfig{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != 200 {
		tb.Fatalf("the scrape fails: %s", w.Body)
	}
	size = w.Body.Len()
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "ratelimit_service_rate_limit_") {
			n++
		}
	}
	return n, size
}

func request(domain, text string) *limiter.Request {
	return &limiter.Request{Domain: []byte(domain), Descriptors: []limiter.Descriptor{{Entries: entries(text)}}}
}

const plainRules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 1000}
- key: seen
  value_to_metric: true
  rate_limit: {unit: hour, requests_per_unit: 1000}
- key: detailed
  detailed_metric: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: never
  rate_limit: {unit: hour, requests_per_unit: 0}
`

// TestG13_ManyReservations: each of as many descriptors as there may be, all of one counter, has a reservation of its own.
func TestG13_ManyReservations(t *testing.T) {
	sealer := new(limiter.Sealer)
	sealer.SetKeys([]byte("key"))
	f := newFixture(t, "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: hour, requests_per_unit: 5000, reserve: {estimate: 1, ttl: 60s}}}",
		limiter.Config{Reservations: sealer})
	many := func(entries string) *limiter.Request {
		r := request("shop", entries)
		r.Descriptors = slices.Repeat(r.Descriptors, limiter.MaxDescriptors)
		r.Hits = 1
		return r
	}
	v := f.decide(t, many("user=ann"))
	if got := v.Statuses[limiter.MaxDescriptors-1].Decision.Reserved; got != limiter.MaxDescriptors {
		t.Fatalf("%d hits are reserved, want %d", got, limiter.MaxDescriptors)
	}
	v = f.decide(t, many("user=ann,reservation="+v.Reservation))
	if got := v.Statuses[limiter.MaxDescriptors-1].Decision.Reserved; got != 0 {
		t.Errorf("%d hits are reserved after all have been settled, want 0", got)
	}
}

func TestG26OverridesAreBounded(t *testing.T) {
	f := newFixture(t, plainRules, limiter.Config{})
	for i := range 50_000 {
		r := request("shop", fmt.Sprint("user=", i))
		r.Descriptors[0].HasOverride = true
		r.Descriptors[0].Override = descriptors.Override{RequestsPerUnit: uint32(i), Unit: descriptors.Hour}
		f.decide(t, r)
	}
	n, size := f.series(t)
	if n > 101*4 {
		t.Errorf("50,000 overrides make %d series, want those of 100 keys and of all others", n)
	}
	if size > 1<<20 {
		t.Errorf("the scrape has %d bytes", size)
	}
	if n := f.stats.Rule(count.NewKey("shop", count.Other)).TotalHits.Load(); n != 49_900 {
		t.Errorf("%d hits are of other keys, want 49900", n)
	}
}

// Property 8: a reload while requests run keeps counters, and every decision is by one set of rules.
func TestReloadUnderLoad(t *testing.T) {
	f := newFixture(t, plainRules, limiter.Config{})
	sets := []string{plainRules, strings.Replace(plainRules, "key: seen", "key: sight", 1)}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var scratch limiter.Scratch
			r := request("shop", "seen=1")
			r.Descriptors = append(r.Descriptors, request("shop", "sight=1").Descriptors...)
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := f.Decide(t.Context(), r, &scratch)
				if err != nil {
					t.Error(err)
					return
				}
				if (v.Statuses[0].Rule == nil) == (v.Statuses[1].Rule == nil) {
					t.Error("a decision is by two sets of rules")
					return
				}
			}
		})
	}
	for i := range 200 {
		load(t, f.Limiter, sets[i%2])
	}
	close(stop)
	wg.Wait()
	c, err := f.Peek(t.Context(), "shop", entries("user=1"))
	if err != nil || c.Decision.Left != 1000 {
		t.Errorf("another counter has %d left (%v)", c.Decision.Left, err)
	}
}

// TestCounted: metrics count any cost that a limit admits, and not the number that stands for one that cannot be read.
func TestCounted(t *testing.T) {
	for hits, want := range map[uint64]uint64{
		0: 0, 5: 5, 1_000_000_001: 1_000_000_001, engine.MaxLimit: engine.MaxLimit, engine.MaxLimit + 1: 1_000_000_000, math.MaxUint64: 1_000_000_000,
	} {
		if got := limiter.Counted(hits); got != want {
			t.Errorf("%d: %d, want %d", hits, got, want)
		}
	}
}

// TestOverdraft: a counter knows how far it is below 0, whatever counts, until a refund has paid that back.
func TestOverdraft(t *testing.T) {
	f := newFixture(t, `
domain: llm
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 1000, late_charge: true}}
  - {key: sliding_window, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: sliding_window, late_charge: true}}
  - {key: token_bucket, rate_limit: {unit: year, requests_per_unit: 1000, algorithm: token_bucket, late_charge: true}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
`, limiter.Config{})
	for _, key := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		about := entries(key + "=ann")
		peek := func(left, over uint64) {
			t.Helper()
			c, err := f.Peek(t.Context(), "llm", about)
			if err != nil || c.Decision.Left != left || c.Overdraft != over {
				t.Errorf("%s: %d left, %d over; %v; want %d and %d", key, c.Decision.Left, c.Overdraft, err, left, over)
			}
		}
		peek(1000, 0)
		charge := func(hits uint32) {
			t.Helper()
			r := &limiter.Request{Domain: []byte("llm"), Hits: hits, Descriptors: []limiter.Descriptor{{Entries: about}}}
			if _, err := f.Decide(t.Context(), r, new(limiter.Scratch)); err != nil {
				t.Fatal(err)
			}
		}
		charge(1000)
		peek(0, 0)
		charge(700)
		peek(0, 700)
		before, after, err := f.Grant(t.Context(), "llm", about, 300, false)
		if err != nil || before.Overdraft != 700 || after.Overdraft != 400 {
			t.Errorf("%s: %v: %+v, %+v", key, err, before, after)
		}
		if _, _, err := f.Grant(t.Context(), "llm", about, 500, false); err != nil {
			t.Error(err)
		}
		peek(100, 0)
	}
	if c, err := f.Peek(t.Context(), "llm", entries("none=ann")); err != nil || c.Overdraft != 0 {
		t.Errorf("a limit of 0: %+v, %v", c, err)
	}
}

func TestResetSeconds(t *testing.T) {
	for _, c := range []struct {
		outcome      limiter.Outcome
		reset, retry time.Duration
		want         int64
	}{
		{limiter.Admitted, 0, 0, 0},
		{limiter.Admitted, 1, 0, 1},
		{limiter.Admitted, time.Second, time.Hour, 1},
		{limiter.Admitted, time.Second + 1, 0, 2},
		{limiter.Admitted, math.MaxInt64, 0, math.MaxInt64/1_000_000_000 + 1},
		{limiter.Rejected, time.Hour, 0, 1},
		{limiter.Rejected, time.Hour, time.Second + 1, 2},
		{limiter.Rejected, 0, time.Minute, 60},
		{limiter.Rejected, 0, math.MaxInt64, math.MaxInt64/1_000_000_000 + 1},
		{limiter.Shadowed, time.Hour, 20 * time.Second, 20},
		{limiter.Shadowed, 0, 0, 1},
		{limiter.ChargedLate, time.Hour, 20 * time.Second, 20},
	} {
		s := limiter.Status{Outcome: c.outcome, Decision: engine.Decision{ResetAfter: c.reset, RetryAfter: c.retry}}
		if got := s.ResetSeconds(); got != c.want {
			t.Errorf("%v, reset after %v, retry after %v: %d, want %d", c.outcome, c.reset, c.retry, got, c.want)
		}
	}
}

// TestScratchIsReused checks that the Scratch of a large request can be reused for a small one, and retains none of its data.
func TestScratchIsReused(t *testing.T) {
	f := newFixture(t, plainRules, limiter.Config{})
	big := request("shop", "user=1")
	big.Descriptors = slices.Repeat(big.Descriptors, 256) // the maximum of a pooled call
	big.Descriptors[0].Entries = []descriptors.Entry{{Key: []byte("user"), Value: bytes.Repeat([]byte("x"), 1<<20)}}
	var scratch limiter.Scratch
	var v *limiter.Verdict
	for _, r := range []*limiter.Request{big, request("shop", "never=1"), request("nowhere", "never=1"), request("shop", "user=2")} {
		var err error
		if v, err = f.Decide(t.Context(), r, &scratch); err != nil {
			t.Fatal(err)
		}
		if len(v.Statuses) != len(r.Descriptors) {
			t.Fatalf("%d statuses for %d descriptors", len(v.Statuses), len(r.Descriptors))
		}
	}
	if v.Over || v.Header != 0 || v.Statuses[0].Remaining != 999 {
		t.Errorf("the last verdict is %+v", v.Statuses[0])
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // a pool keeps its content for one collection
	runtime.ReadMemStats(&before)
	scratch = limiter.Scratch{}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(before.HeapAlloc) - int64(after.HeapAlloc); kept > 512<<10 {
		t.Errorf("the scratch memory kept %d bytes", kept)
	}
}

// remembering rejects everything, as a near cache with remembered rejections does.
type remembering struct {
	backend.Backend

	taken int
}

func (r *remembering) Apply(_ context.Context, ops []backend.Op) {
	for i := range ops {
		if ops[i].Mode == backend.Take {
			r.taken++
		}
		ops[i].Decision = engine.Decision{ResetAfter: time.Minute, RetryAfter: time.Minute}
		ops[i].Origin = backend.FromRejection
	}
}

// TestOverLimitWithLocalCache checks that the near cache's rejections count as over_limit, and as over_limit_with_local_cache only with
// the reference's local cache.
func TestOverLimitWithLocalCache(t *testing.T) {
	for _, local := range []bool{false, true} {
		for _, together := range []bool{false, true} {
			reg, b := stats.New(), new(remembering)
			l := limiter.New(b, reg, limiter.Config{LocalCache: local, StopWhenOver: together})
			load(t, l, plainRules)
			r := request("shop", "user=1")
			r.Descriptors = append(r.Descriptors, request("shop", "detailed=1").Descriptors...)
			var scratch limiter.Scratch
			v, err := l.Decide(t.Context(), r, &scratch)
			if err != nil || !v.Over {
				t.Fatalf("%+v, error %v", v, err)
			}
			if together && b.taken > 0 {
				t.Errorf("%d were taken, though the look was answered from memory", b.taken)
			}
			want := uint64(0)
			if local {
				want = 1
			}
			n := reg.Rule(count.NewKey("shop", "user"))
			if n.OverLimit.Load() != 1 || n.OverLimitWithLocalCache.Load() != want || n.NearLimit.Load() != 0 {
				t.Errorf("local cache %t, together %t: counted %d over the limit, %d of them known, %d near it; want 1, %d, 0",
					local, together, n.OverLimit.Load(), n.OverLimitWithLocalCache.Load(), n.NearLimit.Load(), want)
			}
		}
	}
}
