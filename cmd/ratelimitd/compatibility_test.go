package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCompatibility: docs/compatibility.md has a table for each part of the reference's observable behavior, and each
// row says whether it is the same; if it is not, the row says how it differs, why, or which setting changes it.
func TestCompatibility(t *testing.T) {
	t.Parallel()
	parts := []string{ // without a table of their own
		"1 Rules in YAML", "2 Requests", "4 Stores", "6 Pages", "7 Metrics", "8 Rules while the server runs",
	}
	want := []string{
		"1 Rules in YAML", "1.1 Keys", "1.2 Units and windows", "1.3 What is refused", "1.4 Composite keys", "1.5 Matching",
		"1.6 Several files of one domain", "1.7 share_threshold", "1.8 Metric keys", "1.9 Rules over xDS",
		"2 Requests", "2.1 Validation and errors", "2.2 hits_addend", "2.3 Shadow mode", "2.4 Overrides", "2.5 Quota mode", "2.6 Unlimited",
		"2.7 Replaces", "2.8 Several descriptors", "2.9 STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
		"3 Answers", "3.1 Arithmetic of the statistics",
		"4 Stores", "4.1 Keys and commands", "4.2 Redis", "4.3 A second Redis for limits per second", "4.4 memcached", "4.5 Local cache",
		"5 Settings", "6 Pages", "Main port", "Debug port", "Prometheus port",
		"7 Metrics", "7.1 Names", "7.2 DogStatsD", "7.3 Prometheus", "8 Rules while the server runs", "8.1 Files", "8.2 xDS",
		"9 Health, stopping, logs, tracing, gRPC", "10 Commands", "11 Deployments",
	}
	doc, err := os.ReadFile(filepath.Join(repository, "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, section := range regexp.MustCompile(`(?m)^###? `).Split(string(doc), -1) {
		if i == 0 {
			continue
		}
		title, text, _ := strings.Cut(section, "\n")
		got = append(got, title)
		rows := 0
		for line := range strings.Lines(text) {
			if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| observable") || strings.HasPrefix(line, "| ---") {
				continue
			}
			rows++
			cells := strings.Split(strings.TrimSpace(line), " | ")
			verdict, more := cells[min(1, len(cells)-1)], strings.Trim(cells[len(cells)-1], " |")
			if len(cells) != 3 || !slices.Contains([]string{"same", "better", "different"}, verdict) || verdict != "same" && more == "" {
				t.Errorf("section %q: a row needs what is observed, same, better or different, and for the latter two what there is to know: %s", title, line)
			}
		}
		if rows == 0 && !slices.Contains(parts, title) {
			t.Errorf("section %q has no row", title)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("sections\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
