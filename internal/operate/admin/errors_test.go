package admin_test

import (
	"context"
	"errors"
	"fmt"
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
	ctx := t.Context()
	var many []*adminv1.Descriptor
	for range limiter.MaxDescriptors + 1 {
		many = append(many, &adminv1.Descriptor{Entries: entries("user", "u")})
	}
	long := entries(slicesOf(2*(limiter.MaxEntries+1), "k")...)
	for name, call := range map[string]func() error{
		"Explain, no domain": func() error {
			_, err := s.Explain(ctx, &adminv1.ExplainRequest{Descriptors: many[:1]})
			return err
		},
		"Explain, no descriptors": func() error {
			_, err := s.Explain(ctx, &adminv1.ExplainRequest{Domain: "shop"})
			return err
		},
		"Explain, 1,025 descriptors": func() error {
			_, err := s.Explain(ctx, &adminv1.ExplainRequest{Domain: "shop", Descriptors: many})
			return err
		},
		"Explain, 257 entries": func() error {
			_, err := s.Explain(ctx, &adminv1.ExplainRequest{Domain: "shop", Descriptors: []*adminv1.Descriptor{{Entries: long}}})
			return err
		},
		"Peek, no domain": func() error {
			_, err := s.Peek(ctx, &adminv1.PeekRequest{Entries: entries("user", "u")})
			return err
		},
		"Peek, no entries": func() error {
			_, err := s.Peek(ctx, &adminv1.PeekRequest{Domain: "shop"})
			return err
		},
		"Peek, 257 entries": func() error {
			_, err := s.Peek(ctx, &adminv1.PeekRequest{Domain: "shop", Entries: long})
			return err
		},
		"Reset, no domain": func() error {
			_, err := s.Reset(ctx, &adminv1.ResetRequest{Entries: entries("user", "u")})
			return err
		},
		"Reset, no entries": func() error {
			_, err := s.Reset(ctx, &adminv1.ResetRequest{Domain: "shop"})
			return err
		},
		"ListRules, page size": func() error {
			_, err := s.ListRules(ctx, &adminv1.ListRulesRequest{PageSize: -1})
			return err
		},
		"ListRules, token": func() error {
			_, err := s.ListRules(ctx, &adminv1.ListRulesRequest{PageToken: "no token"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantStatus(t, call(), codes.InvalidArgument, "") })
	}
}

func slicesOf(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
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
		_, err := s.Peek(t.Context(), q)
		wantStatus(t, err, codes.NotFound, "no limit applies to this descriptor")
		_, err = s.Reset(t.Context(), &adminv1.ResetRequest{Domain: q.GetDomain(), Entries: q.GetEntries()})
		wantStatus(t, err, codes.NotFound, "no limit applies to this descriptor")
	}
}

// broken is a store that is down.
type broken struct{}

func (broken) Apply(_ context.Context, ops []backend.Op) {
	for i := range ops {
		ops[i].Err = errors.New("connection refused")
	}
}

func (broken) Close() error { return nil }

func TestUnavailable(t *testing.T) {
	empty := start(t, "")
	_, err := empty.ListRules(t.Context(), &adminv1.ListRulesRequest{})
	wantStatus(t, err, codes.Unavailable, "no rate limit configuration loaded")
	_, err = empty.Peek(t.Context(), &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u1")})
	wantStatus(t, err, codes.Unavailable, "no rate limit configuration loaded")

	down := &server{}
	down.serve(t, broken{}, socket(t), admin.Config{})
	down.load(t, shop)
	_, err = down.Reset(t.Context(), &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1")})
	wantStatus(t, err, codes.Unavailable, "connection refused")
}

// Without the store, Explain names the rule, the fallback, and the outcome that it leads to.
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
