package server

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestPrepaid: health is degraded only while rules have prepaid budgets and a node may evict them or hides its policy.
func TestPrepaid(t *testing.T) {
	t.Parallel()
	load := func(limit string) *descriptors.Set {
		return rulefiletest.Load(t, "domain: d\ndescriptors:\n  - {key: a, value: b, rate_limit: {"+limit+"}}\n")
	}
	h := health.NewTracker()
	p := newPrepaid(slog.New(slog.DiscardHandler), h)
	check := func(want string) {
		t.Helper()
		got := ""
		if all := h.Components(); len(all) > 0 && all[0].Degraded {
			got = all[0].LastError
		}
		if !h.OK() || (got == "") != (want == "") || !strings.HasSuffix(got, want) {
			t.Errorf("degraded %q, health %t, want %q", got, h.OK(), want)
		}
	}
	p.policy("n:1", "allkeys-lru")
	p.policy("n:2", "")
	p.loaded(load("unit: day, requests_per_unit: 5"))
	check("")
	p.loaded(load("unit: forever, requests_per_unit: 5, count_refused: false"))
	check("n:2 does not permit INFO, which has its maxmemory-policy; the maxmemory-policy of n:1 is allkeys-lru")
	p.policy("n:1", "volatile-lru")
	check(": n:2 does not permit INFO, which has its maxmemory-policy")
	p.policy("n:2", "noeviction")
	check("")
	p.policy("n:2", "allkeys-random")
	check("the maxmemory-policy of n:2 is allkeys-random")
	p.loaded(load("unit: day, requests_per_unit: 5"))
	check("")
	(*prepaid)(nil).loaded(load("unit: day, requests_per_unit: 5"))
}
