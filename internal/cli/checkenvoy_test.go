package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestCheckManyFilters: the time to check a configuration is proportional to the number of its filters and clusters.
func TestCheckManyFilters(t *testing.T) {
	t.Parallel()
	took := func(n int) time.Duration {
		var listeners, clusters strings.Builder
		for i := range n {
			fmt.Fprintf(&listeners, `  - {"@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: d, `+
				"rate_limit_service: {grpc_service: {envoy_grpc: {cluster_name: c%d}}}}\n", i)
			fmt.Fprintf(&clusters, "  - {name: c%d, connect_timeout: 1s}\n", i)
		}
		path := filepath.Join(t.TempDir(), "envoy.yaml")
		if err := os.WriteFile(path, []byte("static_resources:\n  listeners:\n"+listeners.String()+"  clusters:\n"+clusters.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		problems, _, _ := checkEnvoy(path, false, nil)
		if len(problems) != n {
			t.Errorf("%d problems, want that all of %d clusters speak HTTP/1", len(problems), n)
		}
		return time.Since(began)
	}
	took(10)
	few, many := took(250), took(4000)
	if most := 4*16*few + time.Second; many > most {
		t.Errorf("4,000 filters take %v, and 250 take %v: want %v at most", many, few, most)
	}
}
