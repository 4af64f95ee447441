package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestInvalid(t *testing.T) {
	s := start(t, shop)
	one := []*adminv1.Descriptor{{Entries: entries("user", "u")}}
	many := slices.Repeat(one, limiter.MaxDescriptors+1)
	long := entries(slices.Repeat([]string{"k"}, 2*(limiter.MaxEntries+1))...)
	for name, err := range map[string]error{
		"Explain, no domain":         failing(t, s.Explain, &adminv1.ExplainRequest{Descriptors: one}),
		"Explain, no descriptors":    failing(t, s.Explain, &adminv1.ExplainRequest{Domain: "shop"}),
		"Explain, 1,025 descriptors": failing(t, s.Explain, &adminv1.ExplainRequest{Domain: "shop", Descriptors: many}),
		"Explain, 257 entries":       failing(t, s.Explain, &adminv1.ExplainRequest{Domain: "shop", Descriptors: []*adminv1.Descriptor{{Entries: long}}}),
		"Peek, no domain":            failing(t, s.Peek, &adminv1.PeekRequest{Entries: entries("user", "u")}),
		"Peek, no entries":           failing(t, s.Peek, &adminv1.PeekRequest{Domain: "shop"}),
		"Peek, 257 entries":          failing(t, s.Peek, &adminv1.PeekRequest{Domain: "shop", Entries: long}),
		"Reset, no domain":           failing(t, s.Reset, &adminv1.ResetRequest{Entries: entries("user", "u")}),
		"Reset, no entries":          failing(t, s.Reset, &adminv1.ResetRequest{Domain: "shop"}),
		"ListRules, page size":       failing(t, s.ListRules, &adminv1.ListRulesRequest{PageSize: -1}),
		"ListRules, token":           failing(t, s.ListRules, &adminv1.ListRulesRequest{PageToken: "no token"}),
	} {
		t.Run(name, func(t *testing.T) { wantStatus(t, err, codes.InvalidArgument, "") })
	}
}

func TestNotFound(t *testing.T) {
	s := start(t, shop)
	for _, q := range []*adminv1.PeekRequest{
		{Domain: "nobody", Entries: entries("user", "u1")},
		{Domain: "shop", Entries: entries("nowhere", "x")},
		{Domain: "shop", Entries: entries("nothing", "x")},
		{Domain: "shop", Entries: entries("user", "vip")},
		{Domain: "shop", Entries: entries("user", "u1", "path", "/")},
	} {
		wantStatus(t, failing(t, s.Peek, q), codes.NotFound, "no limit applies to this descriptor")
		reset := &adminv1.ResetRequest{Domain: q.GetDomain(), Entries: q.GetEntries()}
		wantStatus(t, failing(t, s.Reset, reset), codes.NotFound, "no limit applies to this descriptor")
	}
}

// broken is a backend that is down.
type broken struct{}

func (broken) Apply(_ context.Context, ops []backend.Op) {
	for i := range ops {
		ops[i].Err = errors.New("connection refused")
	}
}

func (broken) Close() error { return nil }

func TestUnavailable(t *testing.T) {
	empty := start(t, "")
	wantStatus(t, failing(t, empty.ListRules, &adminv1.ListRulesRequest{}), codes.Unavailable, "no rate limit configuration loaded")
	peek := &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u1")}
	wantStatus(t, failing(t, empty.Peek, peek), codes.Unavailable, "no rate limit configuration loaded")

	down := &server{}
	down.serve(t, broken{}, socket(t), admin.Config{})
	down.load(t, shop)
	reset := &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1")}
	wantStatus(t, failing(t, down.Reset, reset), codes.Unavailable, "connection refused")
}

// TestExplainWithoutStore: without the backend, Explain names the rule, the fallback, and its outcome.
func TestExplainWithoutStore(t *testing.T) {
	t.Parallel()
	s := &server{}
	s.serve(t, broken{}, socket(t), admin.Config{})
	s.load(t, `
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: open, rate_limit: {unit: minute, requests_per_unit: 3, on_failure: allow}}
  - {key: shut, rate_limit: {unit: minute, requests_per_unit: 3, on_failure: deny}}
  - {key: free, rate_limit: {unlimited: true}}
`)
	for _, tt := range []struct {
		key, want string
		over      bool
	}{
		{"user", "FAILED by shop.user, fallback ERROR, error true", false},
		{"open", "ADMITTED by shop.open, fallback ALLOW, error true", false},
		{"shut", "REJECTED by shop.shut, fallback DENY, error true", true},
		{"free", "UNLIMITED by shop.free, fallback UNSPECIFIED, error false", false},
	} {
		a, err := s.Explain(t.Context(), &adminv1.ExplainRequest{
			Domain:      "shop",
			Descriptors: []*adminv1.Descriptor{{Entries: entries(tt.key, "u1")}},
		})
		if err != nil {
			t.Fatal(err)
		}
		x := a.GetDescriptors()[0]
		got := fmt.Sprintf("%s by %s, fallback %s, error %t", strings.TrimPrefix(x.GetOutcome().String(), "OUTCOME_"), x.GetRule().GetPath(),
			strings.TrimPrefix(x.GetOnFailure().String(), "ON_FAILURE_"), strings.Contains(x.GetStoreError(), "connection refused"))
		if got != tt.want || a.GetOverLimit() != tt.over || x.GetCounter() != nil {
			t.Errorf("%s, over %t, counter %v; want %s, over %t, no counter", got, a.GetOverLimit(), x.GetCounter(), tt.want, tt.over)
		}
	}
}
