package limiter_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/stats"
)

// Two rules whose names are equal when joined with dots have different labels, even after a reload, whichever counts
// first.
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
		key  stats.Key
		want uint64
	}{
		{stats.NewKey("m.b", "c"), 6}, {stats.NewKey("m", "b", "c"), 4}, {stats.NewKey("m", "b.c"), 2},
	} {
		if got := f.stats.Rule(tt.key).TotalHits.Load(); got != tt.want {
			t.Errorf("%+v: %d hits, want %d", tt.key, got, tt.want)
		}
	}
}
