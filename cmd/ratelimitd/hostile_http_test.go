package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const oneRule = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 9}}\n"

// Bodies of nothing but elements, twelve at once, take at most 40 MB, whether the server is told to take the larger ones or
// not. Requests of the largest size that are decided take at most 100 MB.
func TestH11_ManyElements(t *testing.T) {
	t.Parallel()
	elements := func(size int) string {
		return `{"domain":"shop","descriptors":[` + strings.Repeat("{},", size/3-20) + "{}]}"
	}
	// 128 descriptors of 64 entries, as many as there may be, in just below 1 MiB.
	entry := fmt.Sprintf(`{"key":"user","value":%q}`, strings.Repeat("v", 98))
	descriptor := `{"entries":[` + strings.Repeat(entry+",", 63) + entry + "]}"
	full := `{"domain":"shop","descriptors":[` + strings.Repeat(descriptor+",", 127) + descriptor + "]}"
	if len(full) > 1<<20 || len(full) < 1<<20-1<<16 {
		t.Fatalf("the largest body has %d bytes; want almost 1 MiB", len(full))
	}
	for _, tt := range []struct {
		name, body string
		want, most int // the status, and the megabytes
		env        []string
	}{
		{"4 MiB of elements", elements(4 << 20), http.StatusRequestEntityTooLarge, 40, nil},
		{"1 MiB of elements", elements(1 << 20), http.StatusBadRequest, 40, nil},
		{"4 MiB of elements, allowed", elements(4 << 20), http.StatusBadRequest, 40, []string{"JSON_MAX_BODY_SIZE_IN_BYTES=4194304"}},
		{"1 MiB that is decided", full, http.StatusOK, 100, nil},
		{"1 MiB that is decided and told", full, http.StatusOK, 100, []string{"DECISION_METADATA=true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startProcess(t, oneRule, tt.env...)
			d.ready()
			before := d.Resident(t)
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					for range 3 {
						status, answer, err := testkit.Fetch(t.Context(), http.MethodPost, "http://"+d.At["HTTP"]+"/json", tt.body)
						// A client that is refused before it has sent everything may not see the answer.
						if status != tt.want && (err == nil || tt.want != http.StatusRequestEntityTooLarge) && status != http.StatusServiceUnavailable {
							t.Errorf("%d %.100s, %v; want %d", status, answer, err, tt.want)
						}
					}
				})
			}
			wg.Wait()
			if grown := (d.Peak(t) - before) / 1e6; grown > tt.most {
				t.Errorf("memory grew from %d MB by %d MB; want at most %d", before/1e6, grown, tt.most)
			} else {
				t.Logf("memory grew from %d MB by %d MB", before/1e6, grown)
			}
		})
	}
}
