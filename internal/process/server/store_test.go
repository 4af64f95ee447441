package server

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Every value of BACKEND_TYPE has a row, which says how it is opened and how its counters are called.
func TestBackendTypes(t *testing.T) {
	t.Parallel()
	all := backendTypes(new(settings.Settings))
	if d := cmp.Diff(slices.Sorted(slices.Values(settings.BackendTypes())), slices.Sorted(maps.Keys(all))); d != "" {
		t.Errorf("rows (-settings +server):\n%s", d)
	}
	for name, b := range all {
		if b.open == nil || b.key == nil {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

// TestUnsupported: each store is asked for what it cannot count.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	const (
		prepaid = "unit: forever, requests_per_unit: 5, count_refused: false"
		counted = "unit: minute, requests_per_unit: 5, "
		redis   = " cannot be counted under REDIS_KEY_FORMAT=reference"
		cached  = " cannot be counted in memcached"
	)
	reference := []string{"BACKEND_TYPE=redis", "REDIS_KEY_FORMAT=reference"}
	memcached := []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=a:1"}
	for _, tt := range []struct {
		environ     []string
		limit, want string // its beginning; empty if the store can serve it
	}{
		{[]string{"BACKEND_TYPE=memory"}, counted + "algorithm: token_bucket, rlqs: true", ""},
		{[]string{"BACKEND_TYPE=redis"}, counted + "algorithm: token_bucket, rlqs: true", ""},
		{reference, counted, ""},
		{reference, counted + "penalty: {for: 5m}", "a penalty" + redis},
		{reference, counted + "reserve: {estimate: 5}", "reserve" + redis},
		{reference, counted + "algorithm: token_bucket", "algorithm token_bucket" + redis},
		{reference, counted + "rlqs: true", "rlqs" + redis},
		{reference, counted + "rlqs: false", ""},
		{[]string{"BACKEND_TYPE=memory"}, prepaid, "unit: forever cannot be counted in memory"},
		{[]string{"BACKEND_TYPE=redis"}, prepaid, ""},
		{reference, prepaid, "unit: forever" + redis},
		{memcached, prepaid, "unit: forever" + cached},
		{memcached, counted, ""},
		{memcached, counted + "rlqs: true", "rlqs" + cached},
		{memcached, counted + "algorithm: token_bucket", "algorithm token_bucket" + cached},
		{memcached, counted + "align: first", "align: first" + cached},
		{memcached, counted + "reserve: {estimate: 5}", "reserve" + cached},
	} {
		s, _, err := settings.Parse(append(tt.environ, "USE_STATSD=false"))
		if err != nil {
			t.Fatal(err)
		}
		rules := "domain: edge\ndescriptors:\n  - {key: a, value: b, rate_limit: {" + tt.limit + "}}\n"
		set, problems, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: []byte(rules)}}, descriptors.Options{})
		if err != nil {
			t.Fatal(problems)
		}
		got := Unsupported(&s)(set)
		if tt.want == "" {
			if len(got) > 0 {
				t.Errorf("%s, %s: %v", tt.environ, tt.limit, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Line != 3 || got[0].Path != "edge.a_b" || !strings.HasPrefix(got[0].Text, tt.want) {
			t.Errorf("%s, %s: %v, want %q", tt.environ, tt.limit, got, tt.want)
		}
	}
}
