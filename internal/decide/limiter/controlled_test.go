package limiter_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const controlledRules = `
domain: shop
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 3, name: a}
- key: shadow
  shadow_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: quota
  quota_mode: true
  rate_limit: {unit: hour, requests_per_unit: 1}
- key: free
  rate_limit: {unlimited: true}
- key: list
  rate_limits:
  - {unit: hour, requests_per_unit: 3, name: a}
  - {unit: day, requests_per_unit: 5, name: b}
- key: replacing
  rate_limit: {unit: hour, requests_per_unit: 3, replaces: [{name: a}]}
- key: slot
  descriptors:
  - key: by
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: concurrency, holder: by}
- key: locked
  rate_limit: {unit: hour, requests_per_unit: 1, penalty: {for: 2h, on: reached}}
- key: queue
  rate_limit: {unit: hour, requests_per_unit: 1, algorithm: leaky_bucket}
`

// TestControlledRequests checks, for any controls and requests, that a block rejects, that an allow never rejects, and that there is
// always an answer.
func TestControlledRequests(t *testing.T) {
	set := rulefiletest.Load(t, controlledRules)
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		yes := func() bool { return r.IntN(2) == 0 }
		held := controls.New(controls.Config{})
		config := limiter.Config{
			Shadow: yes(), Quota: yes(), StopWhenOver: yes(),
			LocalCache: yes(), ReferenceNames: r.IntN(4) == 0, Overrides: held.Overrides(),
		}
		l := limiter.New(memory.New(memory.Config{}), stats.New(), config)
		l.SetRules(set)
		for range r.IntN(8) {
			if _, err := held.Set(t.Context(), anyControl(r), time.Hour, false); err != nil {
				t.Fatal(err)
			}
		}
		var p limiter.Scratch
		for range 40 {
			q := anyRequest(r)
			text := fmt.Sprintf("seed %d: %s %+v", seed, q.Domain, q.Descriptors)
			x, err := l.Explain(t.Context(), q)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			v, err := l.Decide(t.Context(), q, &p)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			table := config.Overrides.Load()
			if table == nil {
				continue
			}
			for i := range q.Descriptors {
				kind, want := override.Limit, override.Limit // same as no control
				if c := v.Statuses[i].Control; c != nil {
					kind = c.Kind
				}
				for n := len(q.Descriptors[i].Entries) + 1; n > 0; {
					found := table.FindShorter(q.Domain, q.Descriptors[i].Entries, n)
					if found == nil {
						break
					}
					if want = found[0].Kind; want != override.Limit || v.Statuses[i].Control == found[0] {
						break
					}
					if n = len(found[0].Entries); slices.Contains(x.Descriptors[i].Effective.Controls, found[0]) {
						break // it has no effect, and neither has a shorter one
					}
				}
				explained := x.Descriptors[i].Control
				switch {
				case kind == override.Block && (want != override.Block || !v.Over || explained != v.Statuses[i].Control):
					t.Fatalf("%s: %d is blocked, and the answer is %+v", text, i, v)
				case kind != override.Block && want == override.Block && !q.Descriptors[i].Negative:
					t.Fatalf("%s: %d is not blocked", text, i)
				case kind == override.Allow && v.Statuses[i].Exceeded():
					t.Fatalf("%s: %d is allowed, and rejected", text, i)
				}
			}
		}
	}
}

func one(r *rand.Rand, all ...string) string { return all[r.IntN(len(all))] }

// anyKey returns a key of controlledRules or another one.
func anyKey(r *rand.Rand) string {
	return one(r, "a", "shadow", "quota", "free", "list", "replacing", "slot", "locked", "queue", "none")
}

func anyNumber(r *rand.Rand) descriptors.Override {
	return descriptors.Override{RequestsPerUnit: r.Uint32N(5), Unit: descriptors.ParseUnit(one(r, "hour", "day"))}
}

func anyControl(r *rand.Rand) *override.Control {
	c := &override.Control{
		Kind: override.Kind(r.IntN(3)), Domain: one(r, "shop", "shop", "other"), Below: true, LimitName: one(r, "", "", "a", "b"), To: anyNumber(r),
	}
	if r.IntN(5) > 0 {
		c.Entries, c.Below = []override.Entry{{Key: anyKey(r), Value: one(r, "1", "2")}}, r.IntN(2) == 0
	}
	return c
}

func anyRequest(r *rand.Rand) *limiter.Request {
	q := &limiter.Request{Domain: []byte(one(r, "shop", "shop", "shop", "other"))}
	for range 1 + r.IntN(4) {
		d := limiter.Descriptor{Negative: r.IntN(5) == 0, HasHits: r.IntN(2) == 0, Hits: r.Uint64N(3), HasOverride: r.IntN(4) == 0, Override: anyNumber(r)}
		d.Entries = []descriptors.Entry{{Key: []byte(anyKey(r)), Value: []byte(one(r, "1", "2"))}}
		if string(d.Entries[0].Key) == "slot" {
			d.Entries = append(d.Entries, descriptors.Entry{Key: []byte("by"), Value: []byte(one(r, "x", "y"))})
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	return q
}

// skewed is a store of controls whose clock differs from this process's.
type skewed struct{ by time.Duration }

func (s skewed) now() int64 { return time.Now().Add(s.by).UnixMicro() }

func (s skewed) Changes(_ context.Context, since replicated.Revision, _ string) (replicated.Changes, error) {
	return replicated.Changes{Incremental: true, Revision: since, Now: s.now()}, nil
}

func (skewed) Put(_ context.Context, since replicated.Revision, _ []replicated.Entry, _ bool) (replicated.Revision, error) {
	return since, nil
}

func (skewed) Replicas(context.Context) ([]string, error) { return nil, nil }

func (skewed) Leave(context.Context) {}

// TestBlockEndsByTheClockOfTheStore checks that the answer to a blocked request contains the end of the control, regardless of the
// difference of clocks.
func TestBlockEndsByTheClockOfTheStore(t *testing.T) {
	set := rulefiletest.Load(t, controlledRules)
	for _, by := range []time.Duration{-2 * time.Minute, 0, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			c := controls.New(controls.Config{Store: skewed{by}})
			l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Overrides: c.Overrides(), Now: c.Now})
			l.SetRules(set)
			block := &override.Control{Kind: override.Block, Domain: "shop", Entries: []override.Entry{{Key: "a", Value: "x"}}}
			if _, err := c.Set(t.Context(), block, time.Minute, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Second)
			v, err := l.Decide(t.Context(), &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{{Entries: block.Match()}}}, new(limiter.Scratch))
			if err != nil || !v.Over || v.Statuses[0].ResetSeconds() != 40 {
				t.Errorf("%v ahead: %+v, %v; want 40 s", by, v, err)
			}
		})
	}
}
