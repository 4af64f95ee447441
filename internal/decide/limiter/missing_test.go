package limiter_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

const missingRules = `
domain: bench
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
  - key: method
    value: GET
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - key: tenant_*
    rate_limit: {unit: hour, requests_per_unit: 1000000}
`

// TestMissingKeys checks that a key that no rule has at its level is reported once an hour, with the keys that rules have there, and that
// a missing value is not reported.
func TestMissingKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		l := newBench(t, missingRules, limiter.Config{Missing: func(domain, key, why string) { got = append(got, domain+" "+key+": "+why) }})
		ask := func(texts ...string) {
			t.Helper()
			var scratch limiter.Scratch
			for _, text := range texts {
				if _, err := l.Decide(t.Context(), request("bench", text), &scratch); err != nil {
					t.Fatal(err)
				}
			}
		}
		ask("user=a", "tenant_x=a", "method=PUT", "method=GET,path=/", "method=PUT,path=/", "method=GET") // a rule has these keys
		if len(got) > 0 {
			t.Errorf("reported: %q", got)
		}
		time.Sleep(time.Minute)
		for range 1000 {
			ask("usr=a", "usr=b", "user=a,path=/", "method=GET,paths=/", "method=PUT,paths=/")
		}
		want := []string{
			"bench usr: no descriptor at this level has the key usr: no limit; did you mean user? (known: user, method, tenant_*)",
			"bench path: user has no descriptors below it, but the request has another entry: no limit",
			"bench paths: no descriptor at this level has the key paths: no limit; did you mean path?",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		time.Sleep(time.Hour)
		ask("usr=a", "usr=a")
		if len(got) != 4 {
			t.Errorf("an hour later: %q", got[len(want):])
		}
	})
}

// TestMissingKeysAreBounded checks that arbitrary keys cause at most ten reports a minute, and that others are reported later.
func TestMissingKeysAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		l := newBench(t, missingRules, limiter.Config{Missing: func(_, key, _ string) { got = append(got, key) }})
		var scratch limiter.Scratch
		for minute := range 3 {
			for i := range 2000 {
				r := request("bench", fmt.Sprintf("k%d_%d=x", minute, i))
				if i%2 == 0 {
					r.Descriptors[0].Entries[0].Key = []byte(strings.Repeat("\xff", 60_000))
				}
				if _, err := l.Decide(t.Context(), r, &scratch); err != nil {
					t.Fatal(err)
				}
			}
			if len(got) > 10*(minute+1) || len(got) == 0 {
				t.Errorf("%d reports in %d minutes", len(got), minute+1)
			}
			time.Sleep(time.Minute)
		}
	})
}
