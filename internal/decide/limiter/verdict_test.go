package limiter_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestRejection(t *testing.T) {
	over, passed := limiter.Status{Outcome: limiter.Rejected, Over: true}, limiter.Status{Outcome: limiter.Admitted}
	late, quota := limiter.Status{Outcome: limiter.ChargedLate, Over: true}, limiter.Status{Outcome: limiter.Rejected, Over: true, Quota: true}
	for _, c := range []struct {
		name string
		v    limiter.Verdict
		want int
	}{
		{"it passes", limiter.Verdict{Statuses: []limiter.Status{passed}}, -1},
		{"it passes in global shadow mode", limiter.Verdict{Statuses: []limiter.Status{over}}, -1},
		{"that of the headers", limiter.Verdict{Over: true, Header: 2, Statuses: []limiter.Status{passed, over, over}}, 2},
		{"the first quota, where the headers speak of another", limiter.Verdict{Over: true, Header: 0, Statuses: []limiter.Status{passed, quota, quota}}, 1},
		{"without headers", limiter.Verdict{Over: true, Header: -1, Statuses: []limiter.Status{passed, over}}, 1},
		{"only a late charge is over", limiter.Verdict{Over: true, Header: 0, Statuses: []limiter.Status{late}}, -1},
		{"that of the headers is a late charge", limiter.Verdict{Over: true, Header: 1, Statuses: []limiter.Status{over, late}}, 0},
		{"nothing at all", limiter.Verdict{Over: true, Header: -1}, -1},
	} {
		if got := c.v.Rejection(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestRuleName(t *testing.T) {
	rule := &descriptors.Rule{Path: "shop.user"}
	for _, c := range []struct {
		s    limiter.Status
		want string
	}{
		{limiter.Status{}, ""},
		{limiter.Status{Rule: rule}, "shop.user"},
		{limiter.Status{Rule: rule, RateLimit: &descriptors.RateLimit{}}, "shop.user"},
		{limiter.Status{Rule: rule, RateLimit: &descriptors.RateLimit{Name: "logins"}}, "logins"},
		{limiter.Status{RateLimit: &descriptors.RateLimit{}, Override: true}, ""},
	} {
		if got := c.s.RuleName(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.s, got, c.want)
		}
	}
}
