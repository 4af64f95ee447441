package limiter_test

import (
	"fmt"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestSingleUse: checks of thousands of users who each call once are a mistake. Requests that carry no number of hits are not, because each
// is charged when it comes.
func TestSingleUse(t *testing.T) {
	t.Parallel()
	for name, checks := range map[string]bool{"checks": true, "ordinary requests": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n", limiter.Config{SinglesAfter: 1})
			for i := range 2000 {
				r := request("d", fmt.Sprintf("user=%d", i))
				r.Descriptors[0].HasHits = checks
				f.decide(t, r)
			}
			found := uint64(0)
			f.Mistakes(func(_ *descriptors.Rule, _ limiter.Mistake, calls uint64) { found += calls })
			if (found > 0) != checks {
				t.Errorf("%d of 2000 calls are mistakes", found)
			}
		})
	}
}
