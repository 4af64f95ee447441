package ratelimit_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/ratelimit"
)

// limited returns a limiter with the rules of config/example and a clock that stands still.
func limited(t *testing.T) *ratelimit.Limiter {
	t.Helper()
	b := memory.New(memory.Config{Now: func() engine.Micros { return 1_750_000_000_000_000 }})
	t.Cleanup(func() { _ = b.Close() })
	l, err := ratelimit.Open("../../config/example/example.yaml", b)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRules tests that each kind of rule decides as a server does.
func TestRules(t *testing.T) {
	t.Parallel()
	const yes, no = true, false
	for _, tt := range []struct {
		kv   []string
		want []bool
	}{
		{[]string{"fixed", "ann"}, []bool{yes, yes, yes, no}},
		{[]string{"login", "ann"}, []bool{yes, yes, yes, no}},
		{[]string{"api", "ann"}, []bool{yes, yes, no}},
		{[]string{"internal", "ann"}, []bool{yes, yes, yes, yes}},
		{[]string{"trial", "ann"}, []bool{yes, yes, yes, yes}},
		{[]string{"unknown", "ann"}, []bool{yes, yes, yes, yes}},
	} {
		l := limited(t)
		for i, want := range tt.want {
			if ok, err := l.Allow(t.Context(), "example", tt.kv...); ok != want || err != nil {
				t.Errorf("%v: call %d: %v, %v, want %v", tt.kv, i+1, ok, err, want)
			}
		}
	}
	if ok, err := limited(t).Allow(t.Context(), "no such domain", "fixed", "ann"); !ok || err != nil {
		t.Errorf("an unknown domain: %v, %v", ok, err)
	}
	if ok, err := limited(t).Allow(t.Context(), "example", "fixed"); ok || err == nil {
		t.Errorf("a key without a value: %v, %v", ok, err)
	}
}

// TestResult tests the details of an admission, of a rejection and of a queue, and the effect of a refund.
func TestResult(t *testing.T) {
	t.Parallel()
	l, ctx := limited(t), t.Context()
	take := func(hits uint64, key string) ratelimit.Result {
		t.Helper()
		r, err := l.Take(ctx, hits, "example", key, "ann")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := take(2, "log"); !r.OK || r.Rule != "example.log" || r.Remaining != 1 || r.ResetAfter != time.Minute || r.RetryAfter != 0 {
		t.Errorf("2 of 3: %+v", r)
	}
	if r := take(2, "log"); r.OK || r.RetryAfter != time.Minute {
		t.Errorf("2 more: %+v", r)
	}
	if err := l.Refund(ctx, 1, "example", "log", "ann"); err != nil {
		t.Fatal(err)
	}
	if r := take(0, "log"); !r.OK || r.Remaining != 2 {
		t.Errorf("a check after a refund: %+v", r)
	}
	if r := take(1, "leaky"); r.Wait != 0 {
		t.Errorf("first in the queue: %+v", r)
	}
	if r := take(1, "leaky"); !r.OK || r.Wait != 20*time.Second {
		t.Errorf("second in the queue: %+v", r)
	}
}

// failing is a backend that always fails.
type failing struct{ backend.Backend }

func (failing) Apply(_ context.Context, ops []backend.Op) {
	for i := range ops {
		ops[i].Err = errDown
	}
}

var errDown = errors.New("down")

// TestFallback tests that on_failure decides while the backend fails, and that the caller gets the error.
func TestFallback(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("domain: shop\ndescriptors:\n  - {key: none, rate_limit: {unit: hour, requests_per_unit: 1}}\n")
	for _, f := range []string{"error", "allow", "deny", "local"} {
		rules.WriteString("  - {key: " + f + ", rate_limit: {unit: hour, requests_per_unit: 1, on_failure: " + f + "}}\n")
	}
	l, err := ratelimit.New([]byte(rules.String()), failing{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][2]bool{"none": {}, "error": {}, "allow": {true, true}, "deny": {}, "local": {true, false}} {
		for i := range want {
			if ok, err := l.Allow(t.Context(), "shop", key, "ann"); ok != want[i] || !errors.Is(err, errDown) {
				t.Errorf("%s: call %d: %v, %v, want %v", key, i+1, ok, err, want[i])
			}
		}
	}
}

// TestHolder tests that a holder has its slots once, and releases only its own.
func TestHolder(t *testing.T) {
	t.Parallel()
	rules := `
domain: shop
descriptors:
  - key: user
    descriptors:
      - {key: session, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: concurrency, holder: session}}
`
	l, err := ratelimit.New([]byte(rules), memory.New(memory.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	allow := func(session string, want bool) {
		t.Helper()
		if ok, err := l.Allow(t.Context(), "shop", "user", "ann", "session", session); ok != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", session, ok, err, want)
		}
	}
	allow("a", true)
	allow("a", true)
	allow("b", false)
	if err := l.Refund(t.Context(), 1, "shop", "user", "ann", "session", "a"); err != nil {
		t.Fatal(err)
	}
	allow("b", true)
}

// TestInvalid tests that errors name the source, the line and the accepted values.
func TestInvalid(t *testing.T) {
	t.Parallel()
	if _, err := ratelimit.New([]byte("domain: shop\ndescriptors: [{value: ann}]\n"), failing{}); err == nil || !strings.Contains(err.Error(), "rules:2:") {
		t.Errorf("invalid rules: %v", err)
	}
	if _, err := ratelimit.Open("nowhere.yaml", failing{}); err == nil || !strings.Contains(err.Error(), "nowhere.yaml") {
		t.Errorf("a file that is not there: %v", err)
	}
}
