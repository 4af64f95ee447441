package console_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/console"
)

// TestSizeAndInline: the browser loads little, and pages have no inline script or style, which the policy would forbid.
func TestSizeAndInline(t *testing.T) {
	var size int64
	for _, pattern := range []string{"static/*", "templates/*"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			size += int64(len(text))
			if pattern == "templates/*" {
				if found := regexp.MustCompile(`(?i)<style|\bstyle=|<script>|\bon[a-z]+="|javascript:|https?://`).Find(text); found != nil {
					t.Errorf("%s has %s", file, found)
				}
			}
		}
	}
	if size > 150_000 {
		t.Errorf("all files have %d bytes, more than 150 KB", size)
	}
}

// TestHistory: the last hour is kept in order.
func TestHistory(t *testing.T) {
	var h console.History
	if all := h.Last(); len(all) != 0 {
		t.Errorf("at first there are %d samples", len(all))
	}
	hour := int(time.Hour / time.Second)
	for i := range hour + 100 {
		h.Add(console.Sample{Requests: float64(i)})
	}
	all := h.Last()
	if len(all) != hour || all[0].Requests != 100 || all[hour-1].Requests != float64(hour+99) {
		t.Errorf("%d samples from %v to %v; want those from 100 to %d", len(all), all[0], all[len(all)-1], hour+99)
	}
}
