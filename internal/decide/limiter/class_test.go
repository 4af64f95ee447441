package limiter_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

const classRules = `
domain: shop
descriptors:
- key: open
  rate_limit: {unit: hour, requests_per_unit: 1000}
- key: free
  rate_limit: {unlimited: true}
- key: full
  rate_limit: {unit: hour, requests_per_unit: 0}
- key: late
  rate_limit: {unit: hour, requests_per_unit: 0, late_charge: true}
- key: fits
  rate_limit: {unit: hour, requests_per_unit: 1000, late_charge: true}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 0}
- key: deny
  rate_limit: {unit: hour, requests_per_unit: 77, on_failure: deny}
- key: pass
  rate_limit: {unit: hour, requests_per_unit: 77, on_failure: allow}
- key: local
  rate_limit: {unit: hour, requests_per_unit: 77, on_failure: local}
- key: fall
  rate_limit: {unit: hour, requests_per_unit: 77, on_failure: deny, late_charge: true}
- key: fail
  rate_limit: {unit: hour, requests_per_unit: 77}
- key: less
  rate_limit: {unit: hour, requests_per_unit: 1000}
`

// broken77 is a backend that fails for limits of 77.
type broken77 struct{ backend.Backend }

func (b broken77) Apply(ctx context.Context, ops []backend.Op) {
	b.Backend.Apply(ctx, ops)
	for i := range ops {
		if ops[i].Limits[0].Hits == 77 {
			ops[i].Err = errors.New("this one is broken")
		}
	}
}

// TestClass checks that each request has one class, for any combination of outcomes, and is counted in it.
func TestClass(t *testing.T) {
	t.Parallel()
	held := controls.New(controls.Config{})
	for _, c := range []override.Control{
		{Kind: override.Block, Domain: "shop", Entries: []override.Entry{{Key: "blocked", Value: "x"}}},
		{Kind: override.Allow, Domain: "shop", Entries: []override.Entry{{Key: "full", Value: "allowed"}}},
		{Kind: override.Limit, Domain: "shop", Entries: []override.Entry{{Key: "less", Value: "x"}}, To: (&script{t: t}).override("0/HOUR")},
	} {
		if _, err := held.Set(t.Context(), &c, time.Hour, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, shadow := range []bool{false, true} {
		registry := stats.New()
		l := limiter.New(broken77{memory.New(memory.Config{})}, registry,
			limiter.Config{Overrides: held.Overrides(), Local: memory.New(memory.Config{}), Shadow: shadow})
		load(t, l, classRules)
		want := map[limiter.Class]uint64{}
		for _, c := range []struct {
			descriptors     string
			class, inShadow limiter.Class // inShadow applies with SHADOW_MODE
		}{
			{"open", limiter.ClassOK, limiter.ClassOK},
			{"free", limiter.ClassOK, limiter.ClassOK},
			{"other", limiter.ClassOK, limiter.ClassOK},
			{"open:give", limiter.ClassOK, limiter.ClassOK},
			{"late:give", limiter.ClassOK, limiter.ClassOK},
			{"fits:look", limiter.ClassOK, limiter.ClassOK},
			{"shadow", limiter.ClassShadow, limiter.ClassShadow},
			{"shadow open", limiter.ClassShadow, limiter.ClassShadow},
			{"fits", limiter.ClassLateCharge, limiter.ClassLateCharge},
			{"late", limiter.ClassLateCharge, limiter.ClassLateCharge},
			{"open late", limiter.ClassLateCharge, limiter.ClassLateCharge},
			{"late shadow", limiter.ClassLateCharge, limiter.ClassLateCharge},
			{"full", limiter.ClassOverLimit, limiter.ClassShadow},
			{"late:look", limiter.ClassOverLimit, limiter.ClassShadow},
			{"full late", limiter.ClassOverLimit, limiter.ClassLateCharge},
			{"late full shadow", limiter.ClassOverLimit, limiter.ClassLateCharge},
			{"less", limiter.ClassOverLimit, limiter.ClassShadow}, // the number is a control's, but the limit rejects
			{"deny", limiter.ClassFallback, limiter.ClassFallback},
			{"pass", limiter.ClassFallback, limiter.ClassFallback},
			{"local", limiter.ClassFallback, limiter.ClassFallback},
			{"fall", limiter.ClassFallback, limiter.ClassFallback},
			{"pass late", limiter.ClassFallback, limiter.ClassFallback},
			{"full=allowed late", limiter.ClassControl, limiter.ClassControl},
			{"deny full", limiter.ClassFallback, limiter.ClassFallback},
			{"pass full", limiter.ClassOverLimit, limiter.ClassFallback},
			{"full=allowed", limiter.ClassControl, limiter.ClassControl},
			{"full=allowed pass", limiter.ClassControl, limiter.ClassControl},
			{"full=allowed deny", limiter.ClassFallback, limiter.ClassControl},
			{"full=allowed full", limiter.ClassOverLimit, limiter.ClassControl},
			{"blocked", limiter.ClassControl, limiter.ClassControl},
			{"blocked full late deny", limiter.ClassControl, limiter.ClassControl},
		} {
			class := c.class
			if shadow {
				class = c.inShadow
			}
			want[class]++
			r := classRequest(c.descriptors)
			v, err := l.Decide(t.Context(), r, new(limiter.Scratch))
			if err != nil {
				t.Fatalf("%s: %v", c.descriptors, err)
			}
			if v.Class != class {
				t.Errorf("%s, shadow %v: %v, want %v", c.descriptors, shadow, v.Class, class)
			}
		}
		if _, err := l.Decide(t.Context(), classRequest("fail"), new(limiter.Scratch)); err == nil {
			t.Fatal("a store that fails is no error")
		}
		for class, n := range l.Decisions() {
			if c := limiter.Class(class); n != want[c] || registry.Counter(stats.DecisionsTotal, "shop", c.String()).Load() != n {
				t.Errorf("%v was counted %d times, want %d", c, n, want[c])
			}
		}
	}
}

// classRequest returns a request with descriptors such as open, full=allowed, late:give or late:look.
func classRequest(descriptors string) *limiter.Request {
	r := &limiter.Request{Domain: []byte("shop")}
	for text := range strings.FieldsSeq(descriptors) {
		name, how, _ := strings.Cut(text, ":")
		if !strings.Contains(name, "=") {
			name += "=x"
		}
		r.Descriptors = append(r.Descriptors, limiter.Descriptor{Entries: entries(name), Negative: how == "give", HasHits: how == "look"})
	}
	return r
}

// TestManyDomains checks that the number of series of decisions is bounded.
func TestManyDomains(t *testing.T) {
	t.Parallel()
	registry := stats.New()
	l := limiter.New(memory.New(memory.Config{}), registry, limiter.Config{})
	var files []string
	for i := range 1010 {
		files = append(files, "domain: d"+strings.Repeat("x", i)+"\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]")
	}
	load(t, l, files...)
	for i := range 1010 {
		r := &limiter.Request{Domain: []byte("d" + strings.Repeat("x", i)), Descriptors: []limiter.Descriptor{{Entries: entries("k=x")}}}
		if _, err := l.Decide(t.Context(), r, new(limiter.Scratch)); err != nil {
			t.Fatal(err)
		}
	}
	if own, rest := registry.Counter(stats.DecisionsTotal, "d", "ok").Load(), registry.Counter(stats.DecisionsTotal, count.Other, "ok").Load(); own != 1 || rest != 10 {
		t.Errorf("the first domain has %d, those beyond the bound %d, want 1 and 10", own, rest)
	}
	if n := l.Decisions()[limiter.ClassOK]; n != 1010 {
		t.Errorf("%d decisions, want 1010", n)
	}
}
