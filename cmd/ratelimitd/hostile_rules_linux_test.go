package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestY29_Memory: loading the maximum number of rules in a file of less than 10 MB takes at most 500 MB. The test does not depend on
// the load of the machine.
func TestY29_Memory(t *testing.T) {
	const most = 500 << 20
	rules := func(n int, format string) string {
		var b strings.Builder
		b.WriteString("domain: shop\ndescriptors:\n")
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	for name, text := range map[string]string{
		"descriptors with limits":    rules(130_000, "  - key: k%06d\n    rate_limit: {unit: minute, requests_per_unit: 3}\n"),
		"descriptors without limits": rules(330_000, "- key: k%d\n"),
		"keys repeated":              rules(10_000, "- {key: k%d, rate_limit: {unit: day}}\n") + "- key: a\n" + strings.Repeat("  key: a\n", 100_000),
		"comments":                   rules(180_000, "- key: k%d # c\n"),
	} {
		t.Run(name, func(t *testing.T) {
			d := startProcess(t, text, "BACKEND_TYPE=memory")
			d.ready()
			peak := d.Peak(t)
			t.Logf("%d MB of rules, %d MB", len(text)>>20, peak>>20)
			if peak > most {
				t.Errorf("they took %d MB, want at most %d", peak>>20, most>>20)
			}
		})
	}
}
