package server

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/settings"
)

// Every value of BACKEND_TYPE has a row, which says how it is opened and how its counters are called.
func TestBackendTypes(t *testing.T) {
	t.Parallel()
	all := backendTypes()
	if d := cmp.Diff(slices.Sorted(slices.Values(settings.BackendTypes())), slices.Sorted(maps.Keys(all))); d != "" {
		t.Errorf("rows (-settings +server):\n%s", d)
	}
	for name, b := range all {
		if b.open == nil || b.key == nil {
			t.Errorf("%s: %+v", name, b)
		}
	}
}
