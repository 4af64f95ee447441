package limiter_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
)

// TestDottedNamesThatCollide checks that two rules whose names are equal when joined with dots have different labels, in any order of use
// and after a reload.
func TestDottedNamesThatCollide(t *testing.T) {
	const m = "domain: m\ndescriptors: [{key: b.c, rate_limit: {unit: hour, requests_per_unit: 9}}, {key: b, descriptors: [{key: c, rate_limit: {unit: hour, requests_per_unit: 9}}]}]\n"
	const mb = "domain: m.b\ndescriptors: [{key: c, rate_limit: {unit: hour, requests_per_unit: 9}}]\n"
	f := newFixture(t, plainRules, limiter.Config{})
	load(t, f.Limiter, m, mb)
	for range 2 {
		f.decide(t, request("m.b", "c=1"))
		f.decide(t, request("m.b", "c=2"))
		f.decide(t, request("m.b", "c=3"))
		f.decide(t, request("m", "b=1,c=1"))
		f.decide(t, request("m", "b=1,c=2"))
		f.decide(t, request("m", "b.c=1"))
		load(t, f.Limiter, m, mb)
	}
	for _, tt := range []struct {
		key  count.Key
		want uint64
	}{
		{count.NewKey("m.b", "c"), 6}, {count.NewKey("m", "b", "c"), 4}, {count.NewKey("m", "b.c"), 2},
	} {
		if got := f.stats.Rule(tt.key).TotalHits.Load(); got != tt.want {
			t.Errorf("%+v: %d hits, want %d", tt.key, got, tt.want)
		}
	}
}

// TestH8SeriesOfLongValues checks that a long value gets its own series while there is room, and that a short one then still fits.
func TestH8SeriesOfLongValues(t *testing.T) {
	f := newFixture(t, plainRules, limiter.Config{})
	hits := func(value string) uint64 {
		return f.stats.Rule(count.NewKey("shop", "detailed_"+value)).TotalHits.Load()
	}
	ask := func(value string) { f.decide(t, request("shop", "detailed="+value)) }
	long := []string{strings.Repeat("a", 129), strings.Repeat("b", 1000), strings.Repeat("c", 30_000)}
	for _, value := range long {
		ask(value)
	}
	for i := range 10_000 {
		ask(strings.Repeat("x", 500) + fmt.Sprint(i))
	}
	ask("short")
	for _, value := range long {
		ask(value)
		if n := hits(value); n != 2 {
			t.Errorf("%d hits are of the value of %d bytes, want 2", n, len(value))
		}
	}
	if n := hits("short"); n != 1 {
		t.Errorf("%d hits are of the short value, want 1", n)
	}
	if n, size := f.series(t); size > 1<<20 {
		t.Errorf("the scrape has %d series of %d bytes together, want at most 1 MB", n, size)
	}
	if n := hits(count.Other); n < 9_700 {
		t.Errorf("%d hits are of other values, want at least 9700", n)
	}
}
