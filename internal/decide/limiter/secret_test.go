package limiter_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// asked is a backend that records the last operations.
type asked struct {
	backend.Backend

	op backend.Op
}

// Apply implements backend.Backend.
func (a *asked) Apply(ctx context.Context, ops []backend.Op) {
	a.op = ops[0]
	a.Backend.Apply(ctx, ops)
}

// TestSecret checks that with a secret the backend gets neither the subjects of counters nor the names of holders, and that equal names
// remain equal.
func TestSecret(t *testing.T) {
	t.Parallel()
	const rules = `
domain: shop
descriptors: [{key: job, descriptors: [{key: run, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: concurrency, holder: run}}]}]
`
	seen := map[backend.Key]string{}
	for name, secret := range map[string]*descriptors.Secret{
		"none": nil, "one": descriptors.NewSecret([]byte("one")), "two": descriptors.NewSecret([]byte("two")),
	} {
		a := &asked{Backend: memory.New(memory.Config{})}
		l := limiter.New(a, stats.New(), limiter.Config{Secret: secret})
		load(t, l, rules)
		take := func(run string) backend.Op {
			t.Helper()
			r := limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{{Entries: []descriptors.Entry{
				{Key: []byte("job"), Value: []byte("j")}, {Key: []byte("run"), Value: []byte(run)},
			}}}}
			if v, err := l.Decide(t.Context(), &r, new(limiter.Scratch)); err != nil || v.Over {
				t.Fatalf("%s: %+v, %v", name, v, err)
			}
			return a.op
		}
		first, again, other := take("ann"), take("ann"), take("bob")
		if first.Key != again.Key || first.Key != other.Key || first.Take.Owner != again.Take.Owner || first.Take.Owner == other.Take.Owner {
			t.Errorf("%s: %x %q, %x %q, %x %q", name, first.Key, first.Take.Owner, again.Key, again.Take.Owner, other.Key, other.Take.Owner)
		}
		if strings.Contains(first.Take.Owner, "ann") != (secret == nil) {
			t.Errorf("%s: the owner is %q", name, first.Take.Owner)
		}
		if with := seen[first.Key]; with != "" {
			t.Errorf("the keys with %s and %s are the same", name, with)
		}
		seen[first.Key] = name
	}
}
