package limiter_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// naming is a backend that records the names of counters.
type naming struct {
	backend.Backend
	seen []string
}

func (n *naming) Apply(ctx context.Context, ops []backend.Op) {
	for i := range ops {
		n.seen = append(n.seen, string(ops[i].Name))
	}
	n.Backend.Apply(ctx, ops)
}

// TestReferenceNames decides with and without envoyproxy/ratelimit's names of counters.
func TestReferenceNames(t *testing.T) {
	t.Parallel()
	set := rulefiletest.Load(t, `
domain: shop
charge: together
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: path
    value: files/*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 1}
`)
	for _, tt := range []struct {
		names bool
		want  []string // of checks, then of takes
	}{
		{true, []string{"shop_user_ann_", "shop_path_files/*_", "shop_user_ann_", "shop_path_files/*_"}},
		{false, []string{"", "", "", ""}},
	} {
		store := &naming{Backend: memory.New(memory.Config{})}
		l := limiter.New(store, stats.New(), limiter.Config{ReferenceNames: tt.names})
		l.SetRules(set)
		var scratch limiter.Scratch
		r := &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{
			{Entries: []descriptors.Entry{{Key: []byte("user"), Value: []byte("ann")}}},
			{Entries: []descriptors.Entry{{Key: []byte("path"), Value: []byte("files/a")}}},
		}}
		if _, err := l.Decide(t.Context(), r, &scratch); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tt.want, store.seen); d != "" {
			t.Errorf("names %v (-want +got):\n%s", tt.names, d)
		}
		c, err := l.Peek(t.Context(), "shop", r.Descriptors[0].Entries)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.HasPrefix(c.Name, "shop_user_ann_"); got != tt.names {
			t.Errorf("names %v: the counter is called %s", tt.names, c.Name)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
